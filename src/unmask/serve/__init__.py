"""Models over HTTP (extra `serve`): one process with a page, a JSON API and continuous batching.

`engine` owns the networks and `app` answers requests; all they share is a `RequestHandle`. Only the command line
imports them.
"""

"""Models over HTTP (extra `serve`): one process with a page, a JSON API and continuous batching.

`engine` owns the networks; `app` answers requests; neither knows how the other works beyond a `Ticket`. Nothing here is
imported by the rest of the library.
"""

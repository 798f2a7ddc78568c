"""Reading torch's pickled files (.ckpt, .bin, .pt) without running anything of what is in them.

A pickle is a program for a small stack machine, and two of its instructions call functions by name: a file can run
whatever it likes in the process that loads it. So the program is not given to Python's machine, or torch's, but to
this one. It knows numbers, text and containers; a name stays a name (`Name`); a call makes a record of itself
(`Inert`), except for a fixed list of names, in whose place stand functions of ours that check their arguments.
No attribute is ever looked up, nothing is imported, no method of a loaded object is called.

Tensors come out as `Stored`: where they lie in the file, with every bound checked; `Stored.read` fetches one. So the
optimizer's part of a checkpoint costs nothing.

Rooms: `archive` the zip file and its storages, `allowed` the names that mean something, `machine` the program,
`reading` what others call.
"""

from .allowed import CALLS
from .archive import Archive, Storage, Stored
from .machine import Machine
from .torch_files import fetch, load, plain, tensors
from .values import Damaged, Inert, Name

__all__ = [
    "CALLS",
    "Archive",
    "Damaged",
    "Inert",
    "Machine",
    "Name",
    "Storage",
    "Stored",
    "fetch",
    "load",
    "plain",
    "tensors",
]

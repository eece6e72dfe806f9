"""Every error of Holdfast, one file per room; the tree of all of them is drawn in base.py. Imports nothing of ours.

Use it as `from holdfast.errors import JournalBusy`: every name of the files below is a name of this package.
"""

from holdfast.errors.agent import *
from holdfast.errors.backup import *
from holdfast.errors.base import *
from holdfast.errors.host import *
from holdfast.errors.identity import *
from holdfast.errors.journal import *
from holdfast.errors.model import *
from holdfast.errors.runtime import *
from holdfast.errors.step import *

"""Sources of records: two blocks and a reader for each kind, and one line of `table`.

A block says what it declares; the module `read_…` of its kind (`base.READERS`) opens files, turns them into a `Raw` of
features and labels, and collects what is wrong. Checks that all sources share lie in `dprecipe.data.raw`. Data
files are untrusted: no reader unpickles, runs or follows anything in them.
"""

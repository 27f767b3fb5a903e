"""Sources of records: one file with two blocks for each kind, and one line of `table`.

A block says what it declares and how it is read; `read_…` beside it opens files, turns them into a `Raw` of
features and labels, and collects what is wrong. Checks that all sources share lie in `dprecipe.data.raw`. Data
files are untrusted: no reader unpickles, runs or follows anything in them.
"""

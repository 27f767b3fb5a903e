"""One reader for each kind of source.

A reader turns a file into a `Raw` of features and labels, and collects what is wrong with the file. Checks that all
sources share lie in `dprecipe.data.raw`. Data files are untrusted: no reader unpickles, runs or follows anything in
them.
"""

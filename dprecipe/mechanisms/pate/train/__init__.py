"""The part of PATE that runs: deal records, train teachers, put queries, train the student.

`ballot` is the only place where votes meet noise. What votes cost lies in `theory`, which never imports this package.
"""

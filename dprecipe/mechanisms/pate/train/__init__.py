"""The part of PATE that runs: deals records, trains teachers, puts queries, trains the student.

`ballot` is the only place where votes meet noise. The cost of votes is computed in `theory`, which never imports this
package.
"""

"""Contents of a release, and how anyone verifies it.

The certificate, `verify`, signatures, the report and the card. Nothing here needs torch, private data or the private
part of a run folder. Certificates are untrusted input. What a certificate says of one mechanism is in that mechanism's
folder.
"""

"""What may be published, and how anyone verifies it.

Certificate, `verify`, signature, report and card: without torch, private data or the private part of a run folder.
Certificates are untrusted input here. What a certificate says of one mechanism lies in that mechanism's folder.
"""

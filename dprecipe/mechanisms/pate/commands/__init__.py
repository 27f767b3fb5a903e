"""`dprecipe votes`: what a recipe brings on simulated votes.

It simulates, plans and draws figures. It never reads private votes, and nothing it finds enters a certificate.
"""

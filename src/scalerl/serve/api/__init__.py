"""The JSON API of the live page, version 1: `/api/v1/…`, read-only and documented.

    routes ─► openapi          one declaration: it documents the API and checks the parameters
       └────► handlers ─► series, health, selection

Names that version 1 documents keep their meaning. New fields and routes may be added to it; what
would change or remove one becomes version 2.
"""

"""POST /v1/responses: the API of items in and items out, over the same chat machinery.

``protocol`` has the body, ``conversation`` turns its items into a chat request, ``answer`` turns the text that comes into items
and events, and ``route`` joins them. Nothing is stored here: every request brings its whole conversation.
"""

"""Several nsqds as one: their figures at one moment, and what is asked of each over HTTP.

What nsqadmin and the tools both stand on. Knows no command line and no page.
"""

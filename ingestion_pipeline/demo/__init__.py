"""The bundled web site: requests for `*.demo.test` enter, by loopback, and so does a `DemoState`.

Feeds, API listings and error pages leave, the same bytes for the same state.
Reading or storing them does not belong here: the pipeline meets this site over the wire, like any.
"""

"""The bundled web site: requests for `*.demo.test` enter, by loopback, and so does a `DemoState`.

Feeds, API listings and error pages leave, the same bytes for the same state; its webhooks
take in what the demo's followers are told.
Reading or storing pages does not belong here: the pipeline meets this site over the wire, like any.
"""

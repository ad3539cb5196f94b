"""The bundled web site: an HTTP server on loopback for `*.demo.test`.

It serves feeds, API responses and error pages, the same bytes for the same `DemoState`, and its
webhooks receive the notices of the demo's followers. The pipeline reaches it over the wire, like
any other site; no rule of the pipeline belongs here.
"""

DEMO_SUFFIX = ".demo.test"  # of all its host names

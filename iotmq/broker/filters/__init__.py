"""Filter messages for consumers: by tag, or by an expression over properties.

Start with `subscription`, what a consumer says it wants; `sql` reads expressions, `property_filter` applies
them.
"""

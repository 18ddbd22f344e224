"""The pytest plugin, loaded wherever hastore is installed.

It is outside the package ``hastore``, whose import also imports trio: test runs without nodes do
not pay for that, and hastore's own coverage can be measured from its import on.
"""

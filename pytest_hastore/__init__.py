"""What pytest loads wherever hastore is installed: not in that package, so that it costs nothing.

``import hastore`` brings trio along; a test run that asks for no node shall not pay for that, and a
run that measures hastore's own coverage must import it after the measurement has begun.
"""

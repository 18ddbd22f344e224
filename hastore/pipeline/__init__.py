"""Logs of masters and slaves as Spark tables, and the jobs over them.

Needs ``pip install 'hastore[spark]'`` and a Java (17, 21 or 25.0.3), or ``hastore[jre]``.
"""

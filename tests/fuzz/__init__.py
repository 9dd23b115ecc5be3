"""Hostile input, made from good input by mutation: ``python -m tests.fuzz --help``.

Every case must end in a result or in one of the project's typed errors, within ten seconds and
two gigabytes, without a crash and without touching a file outside its scratch folder.

``mutate.py`` damages bytes, JSON, archives and protobuf; ``targets.py`` says what is fed where;
``box.py`` runs cases in a process of its own and judges them; ``__main__.py`` is the long run.
"""

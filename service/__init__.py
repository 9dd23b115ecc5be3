"""The compile service: domain, database, object storage and HTTP API.

How a worker does a build
-------------------------
The database is the truth; a broker message (``service.broker.TASK_RUN_BUILD`` with one
argument, the build's id) only wakes a worker. Open one ``Database`` per process, after any
fork::

    settings = get_settings()
    db = Database(settings.database_url)
    store = open_store(settings)                 # service.storage: models, calibrations, artifacts
    builds = BuildStore(db, settings.lease_policy())

    claim = builds.claim(build_id, worker="host:pid")   # None: another worker has it; end quietly
    spec = claim.build.spec                      # BuildSpec: everything the engine needs
    fetch_model(store, spec.model, folder)       # service.storage.fetch: verified local files
    fetch_calibration(store, spec.calibration, folder)

    builds.progress(claim, phase=Phase.PARSE, current=1, total=9)     # a handful a second at most
    builds.append_log(claim, "line\\nline\\n")   # batches, not single lines
    answer = builds.heartbeat(claim, usage)      # every lease_seconds / 3 and for quick cancels
    answer.cancel_requested                      # -> kill the compiler, builds.cancelled(claim)
    answer.run_limit_s, answer.memory_limit_mb   # may rise while the build runs (a job joined)

    builds.succeed(claim, [StoredFile(kind=…, name=…, sha256=…, size=…)], summary, usage)
    builds.fail(claim, Failure(code=…, message=…), usage)
    builds.time_out(claim, Failure("JOB_TIMEOUT", …), usage)
    builds.cancelled(claim, usage)
    builds.release(claim)                        # shutting down: back to the queue, not counted

Files go to the object store before ``succeed``; the rows that make them artifacts are written
in the same transaction as the state, so there is one set of artifacts however often a build
was tried. Every write carries the claim's fencing number; a write whose lease was lost raises
``LeaseLost`` and changes nothing: stop at once and drop the result.

``Reconciler(db, policy).run_once()`` puts back what lost its lease (``WORKER_LOST`` after
three), ends what waited longer than its queue limit, and writes outbox rows for queued builds
whose message was lost. ``OutboxDispatcher(db, send).run_once()`` sends committed messages.
"""

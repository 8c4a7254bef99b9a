"""The source's synchronous names over the actor driver: `COMPAT_DRIVER=actors` of the shim.

A call of the source is one program: a host that serves the flows comes, executes the run until it rests, and
leaves. Between two calls there is no host. So what a case does next is done to rows, and by another host.

- `place`: where the rows are: memory in virtual time, or PostgreSQL. `rest`: when a run rests.
- `runtime`, `scheduler`: the source's classes. `views`: its stores, as far as they can be read.
- `case_records`: the plugin of pytest that writes down how each case ended, and whether it used the driver.
"""

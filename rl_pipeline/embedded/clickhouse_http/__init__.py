"""The real ClickHouse engine (chdb) in one process, behind ClickHouse's own HTTP protocol.

chdb locks its data directory to one process; this front lets any number of processes share it through an unchanged
`clickhouse-connect`. Run it with `python -m rl_pipeline.embedded.clickhouse_http --data DIR --port N`.

- `engine.py` owns the directory, the chdb connections and the sessions; nothing else imports chdb.
- `statement.py` reads as much of a statement as the protocol needs: where INSERT data begin, which format it wants.
- `request.py` turns an HTTP request into a `Request`; `response.py` turns results and errors into ClickHouse's answers.
- `server.py` joins them; `__main__.py` starts, reports one line when it cannot, and stops in good order.

Whoever can reach the port can do what the engine can, which includes reading and writing the files of the front's user
(`file()`, `INTO OUTFILE`, `FROM INFILE`). Hence loopback by default, no password, and no request from a web page.
"""

CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, total INTEGER NOT NULL);

-- What is to be published, written in the transaction of what it tells of. `seq` is given by the relay: ids of rows are
-- handed out before their transactions commit, so they may become visible out of order.
CREATE TABLE IF NOT EXISTS outbox (id INTEGER PRIMARY KEY, body TEXT NOT NULL, seq INTEGER UNIQUE);

CREATE TABLE IF NOT EXISTS relay (last_seq INTEGER NOT NULL);
INSERT INTO relay SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM relay);

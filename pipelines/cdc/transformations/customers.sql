-- The current state as a table: of each customer the last change, unless that was the end of it.
CREATE MATERIALIZED VIEW customers AS
SELECT id, last.name, last.city
FROM (SELECT id, max_by(struct(op, name, city), offset) AS last FROM changes GROUP BY id)
WHERE last.op <> 'delete'

CREATE MATERIALIZED VIEW revenue AS
SELECT product, sum(quantity) AS sold, sum(amount) AS revenue
FROM sales
GROUP BY product

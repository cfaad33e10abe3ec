CREATE MATERIALIZED VIEW top_pages AS
SELECT page, sum(views) AS views
FROM page_views
GROUP BY page

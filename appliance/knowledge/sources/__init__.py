"""Documents that the appliance fetches itself: from folders, S3 buckets and lists of URLs, kept in step with them."""

"""The page at ``/ngraph`` in MLflow's tracking server: compare devices and compilers in a browser."""

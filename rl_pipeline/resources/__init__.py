"""ConfigurableResources that open the adapters of `stores`; no logic of their own."""

"""A checkpoint behind the OpenAI chat protocol, on loopback. For throughput, serve the same folder with vLLM."""

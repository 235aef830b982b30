"""What serving engines say about themselves on their metrics pages.

One set of counters and gauges for vLLM, SGLang, llama.cpp and our own server. Pages come
in as text; this room opens no connection.
"""

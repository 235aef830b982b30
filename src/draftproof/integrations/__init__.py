"""Parts of this package inside other engines. Each module serves one engine and imports none."""

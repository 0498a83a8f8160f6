"""The scripted agent of `tidegate demo`, and what it takes to watch it: sessions, a gateway process, the figures."""

"""What the benches share: a load generator, upstreams, bodies, gateways and peers, figures and verdicts."""

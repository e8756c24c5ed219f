"""TLS as a plan wants it."""

import ssl

from loadtest.swarm.errors import SwarmError
from loadtest.swarm.plan import Plan


def tls_contexts(plan: Plan) -> tuple[list[ssl.SSLContext], str] | None:
    """The contexts that connections use in turn, each with its certificate, and the server's name."""
    if not plan.tls:
        return None
    contexts = [_context(plan, certificate) for certificate in plan.tls_certificates or ("",)]
    return contexts, plan.tls_server_name or plan.host


def _context(plan: Plan, certificate: str) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=plan.tls_ca or None)
        if plan.tls_insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if certificate:
            name, _, key = certificate.partition(",")
            context.load_cert_chain(name, key or None)
    except (OSError, ssl.SSLError) as error:
        raise SwarmError(f"{certificate or plan.tls_ca}: {error}") from error
    return context

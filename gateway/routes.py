"""The gateway's own routes: the resource of each path. A wrong verb is answered with the verbs of the resource."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from starlette.routing import Route

from curbstone.core.host import Host
from curbstone.core.traffic import Traffic
from curbstone.gateway.http.long_poll import Polls
from curbstone.gateway.http.origin_policy import OriginPolicy
from curbstone.gateway.http.resource import Resource, Verbs
from curbstone.gateway.resources.messages.event_stream import EventStreams
from curbstone.gateway.resources.messages.events import Events
from curbstone.gateway.resources.messages.leases import Leases
from curbstone.gateway.resources.messages.message import OneMessage
from curbstone.gateway.resources.messages.messages import Messages
from curbstone.gateway.resources.messages.publishing import Batch, Producers
from curbstone.gateway.resources.messages.requests import Requests
from curbstone.gateway.resources.messages.settles import Settles
from curbstone.gateway.resources.messages.transactions import Transactions
from curbstone.gateway.resources.metrics.figures import Figures, Process
from curbstone.gateway.resources.metrics.metrics import Metrics
from curbstone.gateway.resources.metrics.stats import Statistics
from curbstone.gateway.resources.queues.admin import Admin
from curbstone.gateway.resources.queues.batches import Batches
from curbstone.gateway.resources.queues.explain import Explain
from curbstone.gateway.resources.queues.keys import Keys
from curbstone.gateway.resources.queues.queues import Queues
from curbstone.gateway.resources.reading.browse import Browse
from curbstone.gateway.resources.reading.history import History
from curbstone.gateway.resources.reading.journal import Journal
from curbstone.gateway.resources.reading.offsets import Offsets
from curbstone.gateway.resources.reading.reading_groups import ReadingGroups
from curbstone.gateway.resources.reading.reading_many import ReadingMany
from curbstone.gateway.resources.reading.search import Search
from curbstone.gateway.resources.server import server_pages
from curbstone.gateway.resources.server.health import Health
from curbstone.gateway.resources.server.server_pages import CONSOLE, front
from curbstone.gateway.settings import GatewaySettings
from curbstone.gateway.traffic import GatewayTraffic

if TYPE_CHECKING:
    from curbstone.access.authenticator import Authenticator

QUEUES = "/v2/{project}/queues"
QUEUE = "/v2/{project}/queues/{queue}"
EVENTS = "/v2/{project}/events"
TRANSACTION = "/v2/{project}/transactions/{id}"


def queue_routes(
    settings: GatewaySettings,
    origins: OriginPolicy,
    polls: Polls,
    streams: EventStreams,
    traffic: GatewayTraffic,
) -> list[Route]:
    """Return the routes of queues and messages."""
    queues = Queues(settings)
    leases = Leases(settings, polls, streams, traffic.http)
    messages = Messages(settings, origins, polls, streams, leases, traffic.http)
    one = OneMessage()
    requests = Requests(settings, polls, traffic.http)
    batch, batches = Batch(settings, traffic.http), Batches()
    admin = Admin(settings)
    groups = ReadingGroups(settings)
    many = ReadingMany(settings, polls)
    transactions = Transactions(settings, traffic.http)
    events = Events(settings, traffic.http)
    return [
        Route(QUEUE + "/messages", Verbs(GET=messages.get, POST=messages.post, DELETE=messages.delete)),
        Route(QUEUE + "/messages/batch", Verbs(POST=batch.post)),
        Route(QUEUE + "/messages/lease", Verbs(POST=leases.lease)),
        Route(QUEUE + "/messages/ack", Verbs(POST=leases.ack)),
        Route(QUEUE + "/messages/nack", Verbs(POST=leases.nack)),
        Route(QUEUE + "/messages/extend", Verbs(POST=leases.extend)),
        Route(QUEUE + "/messages/settle", Verbs(POST=Settles(settings, traffic.http).post)),
        Route(QUEUE + "/leases/{lease}", Verbs(DELETE=leases.confirm)),
        Route(EVENTS + "/{event}/messages", Verbs(POST=events.post)),
        Route(EVENTS + "/{event}/messages/batch", Verbs(POST=events.post_batch)),
        Route(QUEUE, Resource(PUT=queues.put, GET=queues.get, DELETE=queues.delete, OPTIONS=queues.options)),
        Route(QUEUE + "/messages/{id}", Resource(GET=one.get, DELETE=one.delete)),
        Route(QUEUE + "/messages/{id}/history", Resource(GET=History().get)),
        Route(QUEUE + "/producers/{producer}", Resource(GET=Producers().get)),
        Route(QUEUE + "/request", Resource(POST=requests.post)),
        Route("/v2/replies/{id}", Resource(POST=requests.answer)),
        Route(QUEUE + "/explain", Resource(GET=Explain().get)),
        Route(QUEUE + "/keys", Resource(GET=Keys().get)),
        Route(QUEUE + "/batches", Resource(GET=batches.list)),
        Route(QUEUE + "/batches/{batch}", Resource(GET=batches.get, DELETE=batches.delete)),
        Route(QUEUE + "/search", Resource(GET=Search().get)),
        Route(QUEUE + "/pause", Resource(POST=admin.pause)),
        Route(QUEUE + "/resume", Resource(POST=admin.resume)),
        Route(QUEUE + "/purge", Resource(POST=admin.purge)),
        Route(QUEUE + "/undo", Resource(POST=admin.undo)),
        Route(QUEUE + "/redrive", Resource(POST=admin.redrive)),
        Route(QUEUE + "/browse", Resource(GET=Browse().get)),
        Route(QUEUE + "/offsets", Resource(GET=Offsets(polls).get)),
        Route(QUEUE + "/journal", Resource(GET=Journal(polls).get)),
        Route(QUEUE + "/groups", Resource(GET=groups.list)),
        Route(QUEUE + "/groups/{group}", Resource(GET=groups.get, PUT=groups.put, DELETE=groups.delete)),
        Route(QUEUE + "/groups/{group}/ack", Resource(POST=groups.ack)),
        Route("/v2/{project}/offsets", Resource(POST=many.offsets)),
        Route("/v2/{project}/acks", Resource(POST=many.ack)),
        Route(QUEUES, Resource(GET=queues.list)),
        Route("/v2", Resource(GET=queues.projects)),
        Route(EVENTS + "/{event}/queues/{queue}", Resource(PUT=events.bind, DELETE=events.unbind)),
        Route(EVENTS, Resource(GET=events.list)),
        Route(TRANSACTION + "/parts/{part}", Resource(PUT=transactions.put_part)),
        Route(TRANSACTION + "/commit", Resource(POST=transactions.commit)),
        Route(TRANSACTION, Resource(GET=transactions.get, DELETE=transactions.delete)),
    ]


def server_routes(
    settings: GatewaySettings,
    authenticator: Authenticator,
    host: Host,
    protocols: Mapping[str, Traffic],
    process: Process,
) -> list[Route]:
    """Return the other routes: health, figures, documents, the console."""
    health = Health(settings.max_ttl_s)
    figures = Figures(authenticator, host, protocols, process)
    return [
        Route("/", Resource(GET=front)),
        Route("/healthz", Resource(GET=health.alive)),
        Route("/readyz", Resource(GET=health.ready)),
        Route("/metrics", Resource(GET=Metrics(figures, settings.metrics_queues).get)),
        Route("/v2/stats", Resource(GET=Statistics(figures).get)),
        Route("/openapi.yaml", Resource(GET=server_pages.openapi_yaml)),
        Route("/openapi.json", Resource(GET=server_pages.openapi_json)),
        Route("/asyncapi.yaml", Resource(GET=server_pages.asyncapi_yaml)),
        Route("/docs", Resource(GET=server_pages.DOCS.page)),
        Route("/docs/problems", Resource(GET=server_pages.problems)),
        Route("/docs/{file}", Resource(GET=server_pages.DOCS.part)),
        Route("/favicon.ico", Resource(GET=CONSOLE.icon)),
        Route("/console", Resource(GET=CONSOLE.page)),
        Route("/console/{file}", Resource(GET=CONSOLE.part)),
    ]

"""A Python service that works with agents: service.py [NATS URL] [NAMESPACE].

The host serves `examples.outside.agents:AGENTS`. See docs/clients.md.
"""

import asyncio
import sys
from contextlib import aclosing

from broker.client import ActorClient, AskTimeoutError, ClientError


async def main(url: str = "nats://127.0.0.1:4222", namespace: str = "") -> None:
    """Ask, send, watch a run live, and publish."""
    async with ActorClient(url, publisher="crm", namespace=namespace) as client:
        # A question: a run is started, durably, and its output is the answer.
        answer = await client.ask("desk/ann", {"text": "hello agents"}, id="question-1")
        print("answer:", answer)

        # A run that takes its time: start it, watch it, tell it to go on, take its result.
        run = await client.submit("desk/bob", {"text": "one two three", "wait": True})
        words = []
        async with aclosing(client.events(run)) as events:
            async for event in events:
                if event.kind == "entry" and event.name == "run.suspended":
                    await client.signal(run, "ok")
                if event.kind == "delta":
                    words = [event.text] if event.is_restart else [*words, event.text]
        print("said live:", "".join(words))
        ended = await client.result(run)
        print("result:", ended.status, ended.output)

        # A message, and a post for the followers of the topic: stored when the call returns.
        await client.follow("reader/eve", "news/eu")
        await client.publish("news/eu", {"headline": "Rain"}, id="post-1")
        print("sent:", await client.send("reader/eve", {"note": "read this"}, id="mail-1"))

        # What goes wrong is one family of errors, each with a remedy.
        try:
            await client.ask("desk/bob", {"text": "x", "wait": True}, timeout=2)
        except AskTimeoutError as error:
            print("late:", error.problem)
            await client.cancel(error.run_id or "")
        except ClientError as error:
            print(f"{error.problem}. {error.remedy}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

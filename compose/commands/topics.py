"""`callboard publish`, `follow`, `unfollow`, `followers`: topics and who follows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from actors.kernel.agent.message import Message
from actors.kernel.runtime.follow_graph import check_follow
from actors.kernel.runtime.ids import DEFAULT_TENANT, AgentId
from actors.runtime.following import topic_of
from compose.commands.exits import Exit
from compose.commands.json_argument import parse_json
from compose.commands.numbers import Limit
from compose.commands.output import print_json, print_table, say
from compose.commands.target import HERE, Target

if TYPE_CHECKING:
    from actors.kernel.runtime.follow_graph import Subscription
    from actors.kernel.runtime.ids import TopicId


async def publish(
    topic: str,
    message: Annotated[str, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    message_id: str | None = None,
    target: Target = HERE,
) -> int:
    """Publish to a topic: every agent that follows it now gets the message once.

    The post is durable when the command ends; hosts bring it to the followers. That nobody follows
    is no error.

    Examples:
    `callboard publish news/eu '{"headline": "rain"}'`;
    `callboard publish acme:news/eu - --message-id m-1`

    Parameters
    ----------
    topic
        TYPE/SOURCE, or TENANT:TYPE/SOURCE; TYPE alone is its source default.
    message
        As JSON; - reads it from standard input, @FILE from a file.
    message_id
        Publishing the same id to the same topic again reaches nobody twice.
    """
    found = _topic(topic)
    post = Message.of(found, parse_json(message, what="the message"), id=message_id)
    async with target.client() as runtime:
        await runtime.publish(found.type, found.source, post, tenant=found.tenant)
    if target.json:
        print_json({"topic": str(found), "id": post.id})
    else:
        say(f"published {post.id} to {found}")
    return Exit.OK


async def follow(
    agent: str,
    topic: str,
    /,
    *,
    lazy: Annotated[bool, Parameter(negative="")] = False,
    target: Target = HERE,
) -> int:
    """Let an agent get what is published to a topic from now on.

    Following again changes `--lazy` at most.

    Examples:
    `callboard follow desk/main news/eu`;
    `callboard follow desk/archive news/eu --lazy`

    Parameters
    ----------
    agent
        TYPE/KEY, or TENANT:TYPE/KEY.
    topic
        TYPE/SOURCE of the agent's tenant; TYPE alone is its source default.
    lazy
        Posts do not wake the agent; it gets them with whatever starts it next.
    """
    follower = AgentId.parse(agent)
    found = _topic_for(follower, topic)
    async with target.client() as runtime:
        subscription = await runtime.follow(
            follower, found.type, found.source, mode="lazy" if lazy else "eager"
        )
    if target.json:
        print_json(_subscription_to_json(subscription))
    else:
        say(f"{follower} follows {found}" + (", lazily" if lazy else ""))
    return Exit.OK


async def unfollow(agent: str, topic: str, /, *, target: Target = HERE) -> int:
    """End that; what was published before still comes. An agent that did not follow is no error.

    Example: `callboard unfollow desk/main news/eu`

    Parameters
    ----------
    agent
        TYPE/KEY, or TENANT:TYPE/KEY.
    topic
        TYPE/SOURCE of the agent's tenant; TYPE alone is its source default.
    """
    follower = AgentId.parse(agent)
    found = _topic_for(follower, topic)
    async with target.client() as runtime:
        was_following = await runtime.unfollow(follower, found.type, found.source)
    if target.json:
        print_json({"agent": str(follower), "topic": str(found), "was_following": was_following})
    elif was_following:
        say(f"{follower} does not follow {found} any more")
    else:
        say(f"{follower} did not follow {found}")
    return Exit.OK


async def followers(topic: str, /, *, limit: Limit = 50, target: Target = HERE) -> None:
    """List who follows a topic.

    Example: `callboard followers news/eu --limit 1000 --json`

    Parameters
    ----------
    topic
        TYPE/SOURCE, or TENANT:TYPE/SOURCE; TYPE alone is its source default.
    limit
        At most so many.
    """
    found = _topic(topic)
    subscriptions: list[Subscription] = []
    async with target.client() as runtime:
        async for subscription in runtime.follow_graph.followers_of(found):
            if len(subscriptions) == limit:
                break
            subscriptions.append(subscription)
    if target.json:
        print_json([_subscription_to_json(one) for one in subscriptions])
        return
    print_table(
        ("agent", "mode"),
        [(str(one.follower), one.mode) for one in subscriptions],
        empty=f"nobody follows {found}",
    )


def _topic(text: str) -> TopicId:
    return topic_of(text, DEFAULT_TENANT)


def _topic_for(follower: AgentId, text: str) -> TopicId:
    topic = topic_of(text, follower.tenant)
    check_follow(follower, topic)
    return topic


def _subscription_to_json(subscription: Subscription) -> dict[str, str]:
    return {
        "agent": str(subscription.follower),
        "topic": str(subscription.topic),
        "mode": subscription.mode,
    }

"""`callboard publish|follow|unfollow|followers` and `approvals`: topics, their followers, pending approvals."""

from __future__ import annotations

import getpass
from typing import Annotated

from cyclopts import Parameter

from actors._kernel.agent.message import Message
from actors._kernel.runtime.ids import DEFAULT_TENANT, AgentId, TopicId
from actors._kernel.stores.topics import Subscription, check_follow
from actors._runtime.verbs.messaging import topic_of
from compose._commands.options import HERE, AgentArg, Flag, LimitOpt, Target, parse_json
from compose._commands.output import ago, pick

TopicArg = Annotated[
    str, Parameter(help="TYPE/SOURCE, or TENANT:TYPE/SOURCE. TYPE alone means TYPE/default.")
]
FollowedArg = Annotated[
    str, Parameter(help="TYPE/SOURCE of the agent's tenant. TYPE alone means TYPE/default.")
]
ApprovalArg = Annotated[str, Parameter(help="The approval's id, or a prefix of it.")]
ByOpt = Annotated[
    str | None, Parameter(help="Name of the person who decides. Default: the user's name.")
]
CommentOpt = Annotated[str, Parameter(help="Text that the run's log keeps.")]


async def publish(
    topic: TopicArg,
    message: Annotated[str, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    message_id: str | None = None,
    target: Target = HERE,
) -> int:
    """Publish a message to a topic. Every agent that follows the topic now gets the message once.

    The post is durable when the command ends. Hosts deliver it to the followers. A topic without
    followers is no error.

    Examples:
    `callboard publish news/eu '{"headline": "rain"}'`;
    `callboard publish acme:news/eu - --message-id m-1`

    Parameters
    ----------
    message
        The message as JSON; - reads it from standard input, @FILE from a file.
    message_id
        Publishing the same id to the same topic again reaches no follower twice.
    """
    topic_id = topic_of(topic, DEFAULT_TENANT)
    post = Message.of(topic_id, parse_json(message, what="the message"), id=message_id)
    async with target.client() as runtime:
        await runtime.publish(topic_id.type, topic_id.source, post, tenant=topic_id.tenant)
    data = {"topic": str(topic_id), "id": post.id}
    return target.tell(data, f"published {post.id} to {topic_id}")


async def follow(
    agent: AgentArg, topic: FollowedArg, /, *, lazy: Flag = False, target: Target = HERE
) -> int:
    """Let an agent follow a topic: it gets each later post to the topic.

    If the agent follows the topic already, only `--lazy` may change.

    Examples: `callboard follow desk/main news/eu`;
    `callboard follow desk/archive news/eu --lazy`

    Parameters
    ----------
    lazy
        Posts do not wake the agent. It gets them with the next message that starts it.
    """
    topic_id = _topic_for(agent, topic)
    async with target.client() as runtime:
        subscription = await runtime.follow(
            agent, topic_id.type, topic_id.source, mode="lazy" if lazy else "eager"
        )
    text = f"{agent} follows {topic_id}" + (", lazily" if lazy else "")
    return target.tell(_subscription_to_json(subscription), text)


async def unfollow(agent: AgentArg, topic: FollowedArg, /, *, target: Target = HERE) -> int:
    """Let an agent stop following a topic. Earlier posts still arrive.

    If the agent does not follow the topic, nothing changes, and that is no error.

    Example: `callboard unfollow desk/main news/eu`
    """
    topic_id = _topic_for(agent, topic)
    async with target.client() as runtime:
        was_following = await runtime.unfollow(agent, topic_id.type, topic_id.source)
    data = {"agent": str(agent), "topic": str(topic_id), "was_following": was_following}
    text = f"{agent} does not follow {topic_id} any more"
    return target.tell(data, text if was_following else f"{agent} did not follow {topic_id}")


async def followers(topic: TopicArg, /, *, limit: LimitOpt = 50, target: Target = HERE) -> None:
    """List the agents that follow a topic.

    Example: `callboard followers news/eu --limit 1000 --json`
    """
    topic_id = topic_of(topic, DEFAULT_TENANT)
    subscriptions: list[Subscription] = []
    async with target.client() as runtime:
        async for subscription in runtime.follow_graph.followers_of(topic_id):
            if len(subscriptions) == limit:
                break
            subscriptions.append(subscription)
    target.table(
        subscriptions,
        _subscription_to_json,
        ("agent", "mode"),
        lambda subscription: (subscription.follower, subscription.mode),
        empty_text=f"no agent follows {topic_id}",
    )


def _topic_for(follower: AgentId, text: str) -> TopicId:
    topic = topic_of(text, follower.tenant)
    check_follow(follower, topic)
    return topic


def _subscription_to_json(subscription: Subscription) -> dict[str, str]:
    return pick(subscription, "agent=follower topic mode")


async def list_approvals(*, limit: LimitOpt = 50, target: Target = HERE) -> None:
    """List pending approvals, oldest first.

    Example: `callboard approvals list --json`
    """
    async with target.client() as runtime:
        requests = await runtime.approvals.open(limit=limit)
    target.table(
        requests,
        lambda request: request.model_dump(mode="json"),
        ("id", "agent", "what", "with", "asked ago", "ends", "run"),
        lambda request: (
            request.id,
            request.agent_id,
            request.what,
            request.args,
            ago(request.since),
            ago(request.expires_at),
            request.run_id,
        ),
        empty_text="no pending approvals",
    )


async def approve(
    approval: ApprovalArg, /, *, by: ByOpt = None, comment: CommentOpt = "", target: Target = HERE
) -> int:
    """Approve a request. The run continues, and does once exactly what it asked for.

    Example: `callboard approvals approve 3f2a --comment 'called them back'`
    """
    return await _decide("approved", approval, target, by=by, comment=comment)


async def deny(
    approval: ApprovalArg, /, *, by: ByOpt = None, comment: CommentOpt = "", target: Target = HERE
) -> int:
    """Deny a request. The run continues and receives the refusal.

    Example: `callboard approvals deny 3f2a --by Kim`
    """
    return await _decide("denied", approval, target, by=by, comment=comment)


async def _decide(
    word: str, approval_id: str, target: Target, *, by: str | None, comment: str
) -> int:
    async with target.client() as runtime:
        request = await runtime.approvals.decide(
            approval_id, approve=word == "approved", by=by or user_name(), comment=comment
        )
    return target.tell(
        {"id": request.id, "run": request.run_id, "status": word},
        f"{word}: {request.what} of {request.agent_id}; the run continues",
    )


def user_name() -> str:
    """Return the name of the user of this process, or `operator` if the user has no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user often has no name
        return "operator"

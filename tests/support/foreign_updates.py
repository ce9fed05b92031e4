"""Updates of every kind, made and spelled by python-telegram-bot, without anything of the product."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import telegram
from attrs import frozen

WHEN = datetime(2026, 10, 26, 8, 0, 0, tzinfo=UTC)
ADA = telegram.User(
    7001, "Ada \N{SNOWMAN}", False, last_name='O"Neill\\', username="ada_l", language_code="en"
)
BOB = telegram.User(7002, "Боб", False, is_premium=True)
PRIVATE = telegram.Chat(7001, "private", first_name="Ada", username="ada_l")
GROUP = telegram.Chat(-4001, "group", title="Sheep & <goats>")
SUPERGROUP = telegram.Chat(-1001234567890, "supergroup", title="\u2028 lines \u2029", is_forum=True)
CHANNEL = telegram.Chat(-1009876543210, "channel", title="News", username="news_of_it")

# As a dictionary: what its class asks for has changed between versions.
POLL = {
    "id": "1",
    "question": "Well?",
    "options": [{"text": each, "voter_count": 1, "persistent_id": each} for each in ("yes", "no")],
    "total_voter_count": 2,
    "is_closed": False,
    "is_anonymous": True,
    "type": "regular",
    "allows_multiple_answers": False,
    "allows_revoting": False,
    "members_only": False,
}
POLL_ANSWER = {
    "poll_id": "1",
    "option_ids": [0],
    "option_persistent_ids": ["yes"],
    "user": {"id": 7001, "is_bot": False, "first_name": "Ada"},
}


@frozen
class Foreign:
    """One update."""

    kind: str
    """The member that it has besides its id."""
    chat_id: int | None
    """Of the message that is owed to subscribers; None: it is of another kind."""
    body: bytes
    message: bytes
    """The JSON text of that message."""


def _message(number: int, chat: telegram.Chat = PRIVATE, **members: object) -> telegram.Message:
    return telegram.Message(number, WHEN, chat, from_user=ADA, **members)  # type: ignore[arg-type]


def _messages() -> Iterator[telegram.Message]:
    text = 'Tab\t, quote ", \\, </script>, \N{PILE OF POO}, \x7f, \u0000'
    yield _message(1, text=text)
    yield _message(2, text="x" * 4096, entities=(telegram.MessageEntity("bold", 0, 4096),))
    yield _message(3, GROUP, text="", reply_to_message=_message(1, GROUP, text="before"))
    yield _message(4, photo=(telegram.PhotoSize("id", "unique", 90, 90, 1234),), caption="A picture")
    yield _message(5, SUPERGROUP, location=telegram.Location(-0.1257, 51.5085), is_topic_message=True)
    yield _message(6, contact=telegram.Contact("+441234", "Bob", user_id=7002))
    yield _message(
        7, sticker=telegram.Sticker("id", "unique", 512, 512, True, False, "regular", emoji="\N{GHOST}")
    )
    yield _message(8, voice=telegram.Voice("id", "unique", 3, "audio/ogg", 4321), has_protected_content=True)
    yield _message(9, GROUP, new_chat_members=(BOB, telegram.User(7003, "B", True)))
    yield _message(10, GROUP, left_chat_member=BOB)
    yield _message(11, GROUP, group_chat_created=True)
    yield _message(12, GROUP, pinned_message=_message(3, GROUP, text="pin"))
    yield _message(13, dice=telegram.Dice(6, "\N{GAME DIE}"))
    yield _message(14, SUPERGROUP, migrate_from_chat_id=-4002)
    yield _message(
        15,
        forward_origin=telegram.MessageOriginHiddenUser(WHEN, "Somebody"),
        link_preview_options=telegram.LinkPreviewOptions(True),
        text="https://example.org/?a=1&b=%20",
    )
    yield _message(16, web_app_data=telegram.WebAppData('{"a":[1,2.50,"\\u00e9"]}', "Press"))
    yield telegram.Message(17, WHEN, GROUP, sender_chat=CHANNEL, text="as a channel", author_signature="A.")


def _others() -> Iterator[dict[str, object]]:
    member, left = telegram.ChatMemberMember(ADA), telegram.ChatMemberLeft(ADA)
    changed = telegram.ChatMemberUpdated(GROUP, BOB, WHEN, left, member)
    yield {"edited_message": _message(20, text="better", edit_date=WHEN)}
    yield {"channel_post": telegram.Message(21, WHEN, CHANNEL, sender_chat=CHANNEL, text="news")}
    yield {"edited_channel_post": telegram.Message(21, WHEN, CHANNEL, edit_date=WHEN, text="old news")}
    yield {"business_message": _message(22, text="to a business", business_connection_id="b1")}
    yield {"edited_business_message": _message(22, text="to it again", business_connection_id="b1")}
    yield {"deleted_business_messages": telegram.BusinessMessagesDeleted("b1", PRIVATE, (22, 23))}
    yield {"business_connection": telegram.BusinessConnection("b1", ADA, 7001, WHEN, True)}
    yield {
        "message_reaction": telegram.MessageReactionUpdated(
            GROUP, 3, WHEN, (), (telegram.ReactionTypeEmoji("\N{THUMBS UP SIGN}"),), user=ADA
        )
    }
    yield {
        "message_reaction_count": telegram.MessageReactionCountUpdated(
            CHANNEL, 21, WHEN, (telegram.ReactionCount(telegram.ReactionTypeEmoji("\N{FIRE}"), 3),)
        )
    }
    yield {"inline_query": telegram.InlineQuery("q1", ADA, "cats", "")}
    yield {"chosen_inline_result": telegram.ChosenInlineResult("r1", ADA, "cats")}
    yield {
        "callback_query": telegram.CallbackQuery("c1", ADA, "inst", _message(24, text="m"), data="pressed")
    }
    yield {
        "shipping_query": telegram.ShippingQuery("s1", ADA, "p", telegram.ShippingAddress(*("GB" * 6)[:6]))
    }
    yield {"pre_checkout_query": telegram.PreCheckoutQuery("p1", ADA, "EUR", 100, "payload")}
    yield {"purchased_paid_media": telegram.PaidMediaPurchased(ADA, "payload")}
    yield {"poll": telegram.Poll.de_json(POLL, None)}
    yield {"poll_answer": telegram.PollAnswer.de_json(POLL_ANSWER, None)}
    yield {"my_chat_member": changed}
    yield {"chat_member": changed}
    yield {"chat_join_request": telegram.ChatJoinRequest(SUPERGROUP, BOB, WHEN, 7002, bio="Let me in")}
    yield {"chat_boost": telegram.ChatBoostUpdated(CHANNEL, _boost())}
    yield {"removed_chat_boost": telegram.ChatBoostRemoved(CHANNEL, "boost", WHEN, _boost().source)}


def _boost() -> telegram.ChatBoost:
    return telegram.ChatBoost("boost", WHEN, WHEN, telegram.ChatBoostSourcePremium(ADA))


def foreign_updates(first_id: int) -> list[Foreign]:
    """Messages and other kinds by turns; the last message tells that a group has moved."""
    messages = list(_messages())
    moves = _message(30, GROUP, migrate_to_chat_id=-1005555555555)
    made = [{"message": message} for message in messages]
    kinds = [each for pair in zip(made, _others(), strict=False) for each in pair]
    kinds += [*list(_others())[len(made) :], {"message": moves}]
    found = []
    for update_id, members in enumerate(kinds, first_id):
        ((kind, member),) = members.items()
        update = telegram.Update(update_id, **members)
        is_message = kind == "message"
        chat_id = member.chat.id if isinstance(member, telegram.Message) and is_message else None
        message = member.to_json().encode() if isinstance(member, telegram.Message) and is_message else b""
        found.append(Foreign(kind, chat_id, update.to_json().encode(), message))
    return found

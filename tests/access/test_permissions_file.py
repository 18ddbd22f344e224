"""The permissions file: RocketMQ's form, ours, and every mistake with its place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hastore.access.key_file import key_text, parse_key, read_key_file
from hastore.access.permissions import DENY, PUB, SUB
from hastore.access.permissions_file import parse_permissions
from hastore.access.secret import Secret
from hastore.access.secret_file import FILE_SIZE_MAX, read_secret_file
from hastore.access.signature import AccessKey
from hastore.env.real import RealDisk
from hastore.errors import ConfigError

YAML = b"""\
globalWhiteRemoteAddresses:
accounts:
  - accessKey: reader-key
    secretKey: 12345678
    whiteRemoteAddress:
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms:
    - orders=PUB|SUB
    - audit = DENY
    - "%RETRY%late=DENY"
    groupPerms: [billing=SUB]
    allowedRemoteAddresses: [10.0.0.0/8, "2001:db8::7"]
  - accessKey: the-admin
    secretKey: 'with: special # characters'
    admin: true
"""
TOML = b"""\
[[accounts]]
accessKey = "reader-key"
secretKey = "12345678"
defaultGroupPerm = "SUB"
topicPerms = ["orders=PUB|SUB", "audit = DENY", "%RETRY%late=DENY"]
groupPerms = ["billing=SUB"]
allowedRemoteAddresses = ["10.0.0.0/8", "2001:db8::7"]
[[accounts]]
accessKey = "the-admin"
secretKey = "with:_special_#_characters"
admin = true
"""


@pytest.mark.parametrize(
    ("data", "path"),
    [(YAML.replace(b": special # c", b":_special_#_c"), "a.yml"), (TOML, "a.toml")],
)
def test_both_forms_say_the_same(data, path):
    """RocketMQ's YAML, with its empty white addresses, and the same keys in TOML."""
    accounts = parse_permissions(data, path).accounts
    reader, admin = accounts["reader-key"], accounts["the-admin"]
    assert reader.key == AccessKey("reader-key", Secret("12345678"))
    assert (reader.default_topic, reader.default_group) == (DENY, SUB)
    assert reader.topics == {"orders": PUB | SUB, "audit": DENY}
    assert reader.groups == {"billing": SUB, "late": DENY}
    assert [str(network) for network in reader.networks] == ["10.0.0.0/8", "2001:db8::7/128"]
    assert not reader.is_admin
    assert admin.is_admin
    assert admin.key.secret == Secret("with:_special_#_characters")


def one_account(*lines):
    rows = ["accounts:", "  - accessKey: reader-key", "    secretKey: hidden-secret", *lines]
    return "\n".join(rows).encode()


MISTAKES = [
    (b"", "accounts: there is no account"),
    (b"accounts: []", "accounts: there is no account"),
    (b"acounts: []", "line 1: no such key: acounts"),
    (b"- a\n- b", "line 1: not a table of keys"),
    (b"accounts:\n  a: b", "line 2: accounts is not a list of tables"),
    (b"accounts:\n  - a", "line 2: accounts is not a list of tables"),
    (one_account("    admin: maybe"), "line 4: admin is neither true nor false"),
    (one_account("    adminn: true"), "line 4: no such key: adminn"),
    (one_account("    admin: true", "    admin: true"), "line 5: the second admin of one table"),
    (one_account("    defaultTopicPerm: ALL"), "line 4: defaultTopicPerm is not a permission"),
    (one_account("    topicPerms: [orders]"), "line 4: an entry of topicPerms has no ="),
    (one_account("    topicPerms: [o=PUB, o=SUB]"), "line 4: o is twice in topicPerms"),
    (one_account("    topicPerms:", "    - o.x=PUB"), "line 5: 'o.x' in topicPerms can be no such"),
    (one_account("    topicPerms: [o=X]"), "line 4: that of o in topicPerms is not a permission"),
    (one_account("    groupPerms: orders=SUB"), "line 4: groupPerms is not a list of texts"),
    (one_account("    allowedRemoteAddresses: [10.0.0.1/8]"), "line 4: '10.0.0.1/8' is neither"),
    (one_account("    allowedRemoteAddresses: [hidden]"), "line 4: 'hidden' is neither an address"),
    (
        one_account("    whiteRemoteAddress: 10.0.*"),
        "line 4: whiteRemoteAddress would let requests",
    ),
    (
        one_account("globalWhiteRemoteAddresses: [10.0.*]"),
        "line 4: globalWhiteRemoteAddresses would let requests pass",
    ),
    (
        one_account("  - accessKey: reader-key", "    secretKey: hidden-secret"),
        "line 4: access key reader-key has an account already, at line 2",
    ),
    (b"accounts:\n  - secretKey: hidden-secret", "line 2: accessKey is missing"),
    (b"accounts:\n  - accessKey: reader-key", "line 2: secretKey is missing"),
    (
        b"accounts:\n  - accessKey: reader-key\n    secretKey: hidden",
        "line 3: secretKey has 6 characters, not 7 to 1024",
    ),
    (
        b"accounts:\n  - accessKey: reader\n    secretKey: hidden-secret",
        "line 2: accessKey has 6 characters",
    ),
    (
        b"accounts:\n  - accessKey: hidden-secret\n    secretKey: hidden-secret",
        "line 3: secretKey is the accessKey",
    ),
    (
        b"accounts:\n  - accessKey: reader-key\n    secretKey: hidden secret",
        "line 3: secretKey has a space or a control character",
    ),
    (b"accounts:\n  - accessKey: reader-key\n    secretKey: *hidden", "line 3 is not YAML: "),
    (b"accounts:\n  - secretKey: %hidden", "line 2 is not YAML: "),
    (b"accounts:\n  - secretKey: 'hidden", "is not YAML: "),
    (b"accounts: \xff", "line 1: not UTF-8"),
    (b"accounts: [[[[[[[[hidden]]]]]]]]", "line 1: too much in one another"),
    (b"[" * 100_000, "is not YAML"),
    (b"? [a]\n: b", "line 1: a key is no text"),
]


@pytest.mark.parametrize(("data", "what"), MISTAKES, ids=[what for _, what in MISTAKES])
def test_each_mistake_is_named_with_its_line_and_never_a_secret(data, what):
    """The error has the file, the place, the fault and the next step."""
    with pytest.raises(ConfigError) as caught:
        parse_permissions(data, "acl.yml")
    error = caught.value
    assert what in str(error)
    assert str(error).startswith("acl.yml")
    assert error.hint
    if "allowedRemote" not in data.decode(errors="replace"):
        assert "hidden" not in f"{error} {error.hint}"
    assert error.__cause__ is None
    assert error.__suppress_context__ or error.__context__ is None


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[[accounts]]\naccessKey = 1234567", "accounts 1, accessKey: accessKey is not a text"),
        ('[[accounts]]\nsecretKey = "hidden', "is not TOML: "),
        ('accounts = "x"', "accounts: accounts is not a list of tables"),
        (
            '[[accounts]]\naccessKey="reader-key"\nsecretKey="short"',
            "accounts 1, secretKey: secret",
        ),
        ("a = 1\na = 2", "is not TOML: "),
    ],
)
def test_mistakes_in_toml_name_the_key(text, what):
    """A parsed TOML document has no lines; its account and key are named."""
    with pytest.raises(ConfigError, match=r"acl.toml") as caught:
        parse_permissions(text.encode(), "acl.toml")
    assert what in str(caught.value)
    assert "hidden" not in str(caught.value)


def test_the_name_says_what_a_file_contains():
    """Neither YAML nor TOML is guessed."""
    with pytest.raises(ConfigError, match=r"acl.json is neither .yml, .yaml nor .toml"):
        parse_permissions(b"{}", "acl.json")


def test_aliases_cannot_make_a_small_file_large():
    """Ten levels of ten aliases would be ten thousand million entries."""
    lines = ["a0: &a0 [x]"] + [
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 11)
    ]
    with pytest.raises(ConfigError, match="too much in one another"):
        parse_permissions("\n".join(lines).encode(), "acl.yml")


@given(
    st.binary(max_size=200) | st.text(max_size=200).map(str.encode),
    st.sampled_from(["yml", "toml"]),
)
def test_any_bytes_are_a_table_or_a_named_error(data, suffix):
    """No other exception leaves the parser."""
    with pytest.raises(ConfigError, match="acl"):
        parse_permissions(data, f"acl.{suffix}")


@given(
    st.lists(st.sampled_from(YAML.splitlines(keepends=True)), max_size=30).map(b"".join),
    st.integers(0, 400),
    st.binary(max_size=3),
)
def test_shuffled_lines_of_a_real_file_are_read_or_named(data, position, inserted):
    """A damaged file is refused with a reason, or is a table; a secret is in no error."""
    data = data[:position] + inserted + data[position:]
    said = "acl.yml"
    try:
        parse_permissions(data, "acl.yml")
    except ConfigError as error:
        said = f"{error}{error.hint}"
    assert said.startswith("acl.yml")
    assert "12345678" not in said


@pytest.mark.parametrize(
    "text",
    [
        "a" + ".a" * 200_000 + " = 1",
        "".join(f"a{number}.b = 1\n" for number in range(60_000)),
        "['a']\nb = { c" + ' . "d"' * 100_000 + " = 1 }",
    ],
    ids=["one", "many", "quoted"],
)
def test_dotted_keys_are_refused_before_they_are_parsed(text):
    """The parser takes time by the square of their number: here it would take hours."""
    with pytest.raises(ConfigError, match="dots in its keys"):
        parse_permissions(text.encode(), "acl.toml")


def test_dots_in_strings_and_comments_are_not_those_of_keys():
    """Networks have three each, and a file may have thousands."""
    networks = ", ".join(f'"10.0.{n // 256}.{n % 256}"' for n in range(1_000))
    text = f"""
        # {"." * 1_000}
        [[accounts]]
        accessKey = "reader-key"  # {"." * 1_000}
        secretKey = 'at-least-7'
        topicPerms = [\"\"\"orders=SUB\"\"\"]
        allowedRemoteAddresses = [{networks}]
    """
    assert list(parse_permissions(text.encode(), "acl.toml").accounts) == ["reader-key"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644])
def test_a_file_that_others_can_read_is_refused(tmp_path, mode):
    """The error names its mode."""
    path = tmp_path / "acl.yml"
    path.write_bytes(YAML)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=f"has mode {mode:04o}: others may read") as caught:
        read_secret_file(RealDisk(), str(path))
    assert caught.value.hint == f"chmod 600 {path}"
    path.chmod(0o600)
    data, stamp = read_secret_file(RealDisk(), str(path))
    assert (data, stamp.size, stamp.mode) == (YAML, len(YAML), 0o600)


def test_a_file_that_cannot_be_used_is_named(tmp_path):
    """Missing, a directory, too large."""
    with pytest.raises(ConfigError, match=r"cannot read .*No such file"):
        read_secret_file(RealDisk(), str(tmp_path / "none.yml"))
    tmp_path.chmod(0o700)
    with pytest.raises(ConfigError, match=r"cannot read .*directory"):
        read_secret_file(RealDisk(), str(tmp_path))
    large = tmp_path / "large.yml"
    large.touch(0o600)
    os.truncate(large, FILE_SIZE_MAX + 1)
    with pytest.raises(ConfigError, match="at most 1048576 are read"):
        read_secret_file(RealDisk(), str(large))


class _ChangingDisk(RealDisk):
    def read_file(self, path):
        data = super().read_file(path)
        with Path(path).open("ab") as file:
            file.write(b"more")
        return data


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path):
    """Half a file could be a table with fewer accounts."""
    path = tmp_path / "acl.yml"
    path.touch(0o600)
    with pytest.raises(ConfigError, match="changes while it is read"):
        read_secret_file(_ChangingDisk(), str(path))


def test_a_key_file_is_read_as_it_was_written(tmp_path):
    """In TOML as keygen writes it, and in YAML as RocketMQ's tools.yml."""
    key = AccessKey("reader-key", Secret("hidden-secret"))
    path = tmp_path / "key.toml"
    path.write_text(key_text(key))
    path.chmod(0o600)
    assert read_key_file(RealDisk(), str(path)) == key
    assert parse_key(b"accessKey: reader-key\nsecretKey: hidden-secret\n", "tools.yml") == key
    with pytest.raises(ConfigError, match=r"key.yml, line 1: no such key: admin"):
        parse_key(b"admin: true", "key.yml")

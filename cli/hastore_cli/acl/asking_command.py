"""Commands that ask a node: their options for TLS, and what comes of them.

Whether a node is asked by TLS, the first that is there::

    --tls-ca, --tls-cert, --tls-key, --tls-server-name    yes
    HASTORE_TLS_CA and the like                           yes, unless HASTORE_TLS_MODE is disabled
    [tls] of the configuration file                       if its mode is not disabled

Each value is the flag's, else the variable's, else the file's.  A file that is not TOML, or that is
named and cannot be read, is an error: it may say that nothing leaves in the clear.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, cast

import attrs
import rich_click as click

from hastore.setting import Kind
from hastore_cli.app.command import ExampleCommand
from hastore_cli.settings.config_file import asking_config_option, read_sections
from hastore_cli.settings.kinds import parse_value

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hastore.status import TlsVersion
    from hastore.tls.client_tls import ClientTls

_META: Final = "hastore.tls"
_DISABLED: Final = "disabled"
# Flag, key in [tls], placeholder, help.
_OPTIONS: Final = (
    (
        "--tls-ca",
        "ca",
        "FILE",
        "Ask by TLS: who signs the node's certificate (PEM). Default: who the system trusts.",
    ),
    ("--tls-cert", "cert", "FILE", "This client's certificate (PEM), where nodes ask for one."),
    ("--tls-key", "key", "FILE", "Its key (PEM), which only its owner may read."),
    (
        "--tls-server-name",
        "server_name",
        "NAME",
        "The name that the node's certificate must have. Default: the host that is asked.",
    ),
)
_PASSWORD: Final = "key_password_file"  # noqa: S105 - the key of a setting
_CRL: Final = "crl"
_VERSION: Final = "min_version"
_CIPHERS: Final = "ciphers"
_WITHOUT_FLAG: Final = (_PASSWORD, _CRL, _VERSION, _CIPHERS)  # of the file, or by a variable


class AskingCommand(ExampleCommand):
    """A command that asks a node, which a configuration file may name (``node.options``)."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not any("-c" in param.opts for param in self.params):
            self.params.append(asking_config_option())
        self.params += [_option(*row) for row in _OPTIONS]


def _option(flag: str, key: str, metavar: str, help_text: str) -> click.Option:
    def keep(ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
        if value is not None:
            ctx.meta.setdefault(_META, {})[key] = value

    return click.RichOption(
        [flag, f"tls_{key}"],
        metavar=metavar,
        type=click.Path(dir_okay=False) if metavar == "FILE" else str,
        expose_value=False,
        callback=keep,
        help=help_text,
    )


def client_tls(environ: Mapping[str, str] | None = None) -> ClientTls | None:
    """Return how the running command connects to client ports; None: plain.

    Raises ConfigError for unusable files.
    """
    given = os.environ if environ is None else environ
    file = read_sections(given)
    variable = given.get("HASTORE_TLS_MODE", "").lower()
    mode = variable or str(file.get("tls", {}).get("mode", _DISABLED)).lower()
    return _client_tls(given, file, is_on=mode != _DISABLED, takes_variables=variable != _DISABLED)


def ha_client_tls(environ: Mapping[str, str] | None = None) -> ClientTls | None:
    """Return how the running command connects to HA ports; None: plain.

    ``[ha] tls`` stands for ``[tls] mode``.  Raises ConfigError for unusable files.
    """
    given = os.environ if environ is None else environ
    file = read_sections(given)
    variable = given.get("HASTORE_HA_TLS")
    is_on = file.get("ha", {}).get("tls") is True
    if variable:
        is_on = bool(parse_value(Kind.BOOL, variable))
    return _client_tls(given, file, is_on=is_on, takes_variables=is_on or not variable)


def _client_tls(
    environ: Mapping[str, str],
    file: Mapping[str, Mapping[str, object]],
    *,
    is_on: bool,
    takes_variables: bool,
) -> ClientTls | None:
    """Return it if a flag or a variable is given, or if the configuration says so."""
    context = click.get_current_context(silent=True)
    flags: dict[str, str] = {} if context is None else context.meta.get(_META, {})
    variables = {
        key: value
        for key in [row[1] for row in _OPTIONS]
        if takes_variables and (value := _variable(environ, key))
    }
    if not flags and not variables and not is_on:
        return None
    from hastore.tls.client_tls import ClientTls
    from hastore.tls.contexts import TlsRules

    further = {key: value for key in _WITHOUT_FLAG if (value := _variable(environ, key))}
    values = {**(_texts(file.get("tls", {})) if is_on else {}), **further, **variables, **flags}
    rules = TlsRules()
    if _VERSION in values:
        version = cast("TlsVersion", parse_value(Kind.TLS_VERSION, values[_VERSION]))
        rules = attrs.evolve(rules, min_version=version)
    if _CIPHERS in values:
        rules = attrs.evolve(rules, ciphers=values[_CIPHERS])
    return ClientTls.of_files(
        ca=values.get("ca"),
        cert=values.get("cert"),
        key=values.get("key"),
        key_password=values.get(_PASSWORD),
        crl=values.get(_CRL),
        rules=rules,
        server_name=values.get("server_name"),
    )


def _variable(environ: Mapping[str, str], key: str) -> str | None:
    return environ.get(f"HASTORE_TLS_{key.upper()}")


def _texts(section: Mapping[str, object]) -> dict[str, str]:
    """Return the texts of ``[tls]``.

    A node's key is often its own user's to read: others ask without a certificate.
    """
    texts = {key: value for key, value in section.items() if isinstance(value, str)}
    if not os.access(texts.get("key", ""), os.R_OK):
        for key in ("cert", "key", _PASSWORD):
            texts.pop(key, None)
    return texts

"""Who may write where on the Hub, as far as `whoami` tells."""

from __future__ import annotations

from typing import Any

from hf_electra_rtd.publishing.hub_errors import HubError


_WRITING = ("admin", "write", "contributor")  # roles in organisations, and of tokens
_WRITE_PERMISSION = "repo.write"  # of fine-grained tokens


def refuse_without_rights(identity: dict[str, Any], repo_id: str) -> None:
    """Makes sure that nothing in what the Hub tells of a token says that it may not write to a repository. What is not
    told is not guessed: the Hub itself decides then.

    Args:
        identity: what `HfApi.whoami` answers: `name`; `orgs`, each with `name`, `roleInOrg` and `resourceGroups`;
            `auth.accessToken` with `role` (`read`, `write`, `fineGrained`) and, of a fine-grained one,
            `fineGrained.scoped`: `entity` (`type`, `name`) and `permissions`.
        repo_id: to be written to.

    Raises:
        HubError: says which right is missing and how to get it.
    """
    user, owner = identity["name"], repo_id.partition("/")[0]
    if identity.get("type") == "user" and owner.lower() != user.lower():
        _refuse_outsiders(identity, repo_id, owner)
    token = identity.get("auth", {}).get("accessToken", {})
    if token.get("role") == "read":
        raise HubError(
            f"{repo_id}: the token of {user} may only read. Log in with one that may write (hf auth login, or the "
            "environment variable HF_TOKEN).",
            False,
        )
    if token.get("role") == "fineGrained" and "fineGrained" in token and not _is_granted(token, repo_id, owner):
        raise HubError(
            f"{repo_id}: the fine-grained token of {user} has no permission to write to repositories of {owner}. Give "
            "it that permission in the Hub's settings, or log in with another one (hf auth login).",
            False,
        )


def _refuse_outsiders(identity: dict[str, Any], repo_id: str, owner: str) -> None:
    remedy = f"Ask for write access to {owner}, or choose another --repo_prefix, such as {identity['name']}/..."
    organisation = next((org for org in identity.get("orgs", []) if org["name"].lower() == owner.lower()), None)
    if organisation is None:
        raise HubError(f"{repo_id}: {identity['name']} is no member of {owner}. {remedy}", False)
    groups = organisation.get("resourceGroups") or []  # may grant more than the role in the whole organisation
    roles = [role for role in (organisation.get("roleInOrg"), *(group.get("role") for group in groups)) if role]
    if roles and not set(roles) & set(_WRITING):
        raise HubError(f"{repo_id}: {identity['name']} may only read in {owner} (role {roles[0]!r}). {remedy}", False)


def _is_granted(token: dict[str, Any], repo_id: str, owner: str) -> bool:
    writable = {
        (scope["entity"].get("type"), str(scope["entity"].get("name")).lower())
        for scope in token["fineGrained"].get("scoped", [])
        if _WRITE_PERMISSION in scope["permissions"]
    }
    return bool(writable & {("user", owner.lower()), ("org", owner.lower()), ("model", repo_id.lower())})

# registries.sh GIVEN: writes down where apt, pip and npm of this machine get packages, for a Debian that has nothing.
#
# GIVEN gets `home` and `etc`, pip's and npm's files; `environment`, variables to export; and `shown`, files and
# directories that these name, which must be found in the same place. Writes nothing else, and prints nothing.
set -eu
given=$1
mkdir -p "$given/home/.config/pip" "$given/etc"
for file in /etc/resolv.conf /etc/hosts /etc/pip.conf; do
    [ ! -e "$file" ] || cp -L "$file" "$given/etc/"
done
for file in "$HOME/.pip/pip.conf" "${XDG_CONFIG_HOME:-$HOME/.config}/pip/pip.conf"; do
    [ ! -e "$file" ] || cp -L "$file" "$given/home/.config/pip/pip.conf"
done
variables='^(PIP_[A-Z_]+|(NPM_CONFIG|npm_config)_registry|NODE_EXTRA_CA_CERTS|SSL_CERT_FILE|REQUESTS_CA_BUNDLE)='
variables="$variables|^(CURL_CA_BUNDLE|https?_proxy|no_proxy|HTTPS?_PROXY|NO_PROXY)="
export -p | sed -E 's/^(declare -x|export) //' | grep -E "$variables" >"$given/environment" || true
if command -v npm >/dev/null; then
    grep -E '^//|registry' "$HOME/.npmrc" >"$given/home/.npmrc" 2>/dev/null || true
    echo "NPM_CONFIG_REGISTRY=$(npm config get registry 2>/dev/null)" >>"$given/environment"
    cafile=$(npm config get cafile 2>/dev/null)
    case "$cafile" in /*) echo "NPM_CONFIG_CAFILE=$cafile" >>"$given/environment" ;; esac
fi
named='find-links|index-url|cert|constraint|FIND_LINKS|INDEX_URL|CERT|CONSTRAINT|CA_BUNDLE|CA_CERTS|CAFILE'
cat "$given/etc/pip.conf" "$given/home/.config/pip/pip.conf" "$given/environment" 2>/dev/null | grep -E "$named" |
    sed 's#file://##g' |
    tr -s "=\"' \t" '\n' | grep '^/' |
    sed 's#/simple/*$##' | sort -u >"$given/named" || true # an index's pages name files that stand beside them
while read -r path; do
    [ ! -e "$path" ] || echo "$path"
done <"$given/named" >"$given/shown"

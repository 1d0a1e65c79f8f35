{{/* Checks of the values: first each by itself (_values.tpl), then what belongs together. All problems are reported at once.
Helm renders templates in no fixed order, so each begins with this, and the first one checks. */}}
{{- define "dranet.check" -}}
{{- if not (hasKey . "dranetWrong") -}}
{{- $_ := set . "dranetWrong" list -}}
{{- $_ := set . "dranetSchema" (.Files.Get "files/values.schema.json" | fromJson) -}}
{{- $_ := set . "dranetRefused" (.Files.Get "files/refused-values.yaml" | fromYaml).values -}}
{{- include "dranet.checkValue" (dict "root" . "schema" .dranetSchema "value" .Values "path" "") -}}
{{- if not .dranetUnreadable }}{{ include "dranet.checkMissing" . }}{{ end -}}
{{- if not .dranetUnreadable -}}
{{- include "dranet.checkTwice" . -}}
{{- include "dranet.checkImage" . -}}
{{- include "dranet.checkAddresses" . -}}
{{- include "dranet.checkAttributes" . -}}
{{- include "dranet.checkPools" . -}}
{{- include "dranet.checkUpdate" . -}}
{{- include "dranet.checkSecurity" . -}}
{{- include "dranet.checkRights" . -}}
{{- include "dranet.checkMetrics" . -}}
{{- include "dranet.checkWebhook" . -}}
{{- include "dranet.checkMonitor" . -}}
{{- include "dranet.checkClasses" . -}}
{{- end -}}
{{- if not .dranetWrong }}{{ include "dranet.checkInstalled" . }}{{ include "dranet.checkOthers" . }}{{ end -}}
{{- with .dranetWrong }}{{ fail (printf "\n\n* %s\n" (join "\n* " .)) }}{{ end -}}
{{- end -}}
{{- end -}}

{{- define "dranet.wrong" -}}
{{- $_ := set .root "dranetWrong" (append .root.dranetWrong .message) -}}
{{- end -}}

{{/* Helm removes a value that is set to null together with its default, and with --reuse-values only the values of the
earlier chart exist. */}}
{{- define "dranet.checkMissing" -}}
{{- $root := . -}}
{{- range $path := (.Files.Get "files/refused-values.yaml" | fromYaml).needed -}}
{{- $parent := $root.Values -}}
{{- $part := $root.dranetSchema -}}
{{- range $step := initial (splitList "." $path) }}{{ $parent = get ($parent | default dict) $step }}{{ $part = get $part.properties $step }}{{ end -}}
{{- $key := last (splitList "." $path) -}}
{{- if and (kindIs "map" $parent) (or (not (hasKey ($parent | default dict) $key)) (kindIs "invalid" (get ($parent | default dict) $key))) -}}
{{- $_ := set $root "dranetUnreadable" true -}}
{{- include "dranet.wrong" (dict "root" $root "message" (printf "%s is empty (null). %s the key out for the default (after --reuse-values, if the value is new in this chart: use --reset-then-reuse-values)" $path (eq (toString (get $part.properties $key).type) "array" | ternary "Write [] for none, or leave" "Leave"))) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* A setting under both of its names would have two values. */}}
{{- define "dranet.checkTwice" -}}
{{- $root := . -}}
{{- range $pool := prepend (.Values.pools | default list) dict -}}
{{- $settings := hasKey $pool "name" | ternary $pool.settings $root.Values.settings | default dict -}}
{{- range $name, $_ := $settings -}}
{{- $snake := snakecase $name -}}
{{- if and (ne $name $snake) (hasKey $settings $snake) -}}
{{- $place := hasKey $pool "name" | ternary (printf "pools[%v].settings" $pool.name) "settings" -}}
{{- include "dranet.wrong" (dict "root" $root "message" (printf "%s: %s and %s are the same setting; leave one of them out" $place $name $snake)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "dranet.checkImage" -}}
{{- $name := last (splitList "/" .Values.image.repository) -}}
{{- if contains "@" $name -}}
{{- include "dranet.wrong" (dict "root" . "message" (printf "image.repository: %s has a digest in it: write %s there, and what follows the @ as image.digest" .Values.image.repository (first (splitList "@" .Values.image.repository)))) -}}
{{- else if contains ":" $name -}}
{{- include "dranet.wrong" (dict "root" . "message" (printf "image.repository: %s has a tag in it: write %s there, and %q as image.tag" .Values.image.repository (trimSuffix (printf ":%s" (last (splitList ":" $name))) .Values.image.repository) (last (splitList ":" $name)))) -}}
{{- else if not (regexMatch "^([a-z0-9]([a-z0-9._-]*[a-z0-9])?(:[0-9]+)?(/[a-z0-9]([a-z0-9._-]*[a-z0-9])?)*)?$" .Values.image.repository) -}}
{{- include "dranet.wrong" (dict "root" . "message" (printf "image.repository: %s is not the name of an image: write registry and path in small letters, without https://, as in registry.example.com/dranet" .Values.image.repository)) -}}
{{- end -}}
{{- $registry := .Values.global.imageRegistry | default .Values.image.registry -}}
{{- if and $registry (regexMatch "^([^/]*[.:][^/]*|localhost)/" .Values.image.repository) -}}
{{- $key := .Values.global.imageRegistry | empty | ternary "image.registry" "global.imageRegistry" -}}
{{- $path := regexReplaceAll "^[^/]*/" .Values.image.repository "" -}}
{{- include "dranet.wrong" (dict "root" . "message" (printf "image.repository: %s names a registry, and %s is %s: write %s there" .Values.image.repository $key $registry $path)) -}}
{{- end -}}
{{- if and .Chart.IsRoot (hasKey .Values "enabled") -}}
{{- include "dranet.wrong" (dict "root" . "message" "enabled: only a chart that has this one as a dependency reads it (condition: dranet.enabled); remove it") -}}
{{- end -}}
{{- end -}}

{{/* A port alone, and an address of IPv6 without brackets, are common mistakes. */}}
{{- define "dranet.checkAddresses" -}}
{{- $root := . -}}
{{- $form := (.Files.Get "files/driver.yaml" | fromYaml).bindAddress -}}
{{- range $pool := prepend (.Values.pools | default list) dict -}}
{{- $settings := include "dranet.snake" (hasKey $pool "name" | ternary $pool.settings $root.Values.settings) | fromJson -}}
{{- if hasKey $settings "bind_address" -}}
{{- if not (regexMatch $form (toString $settings.bind_address)) -}}
{{- include "dranet.wrong" (dict "root" $root "message" (printf "%ssettings.bind_address: %v is not HOST:PORT with a port from 1 to 65535. All addresses: \":9177\"; one: \"10.0.0.1:9177\", \"[fd00::1]:9177\"; only the node itself: \"127.0.0.1:9177\"" (hasKey $pool "name" | ternary (printf "pools[%v]." $pool.name) "") $settings.bind_address)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "dranet.checkAttributes" -}}
{{- $root := . -}}
{{- range $pool := .Values.pools | default (list dict) -}}
{{- $file := or (get (include "dranet.snake" $pool.settings | fromJson) "attributes_file") (get (include "dranet.snake" $root.Values.settings | fromJson) "attributes_file") -}}
{{- if and $file (concat $root.Values.attributes ($pool.attributes | default list)) -}}
{{- include "dranet.wrong" (dict "root" $root "message" (printf "settings.attributes_file: %s would not be read%s, because the values have attributes too, and the driver reads one file" $file (hasKey $pool "name" | ternary (printf " in pool %s" $pool.name) ""))) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "dranet.checkMonitor" -}}
{{- $root := . -}}
{{- range $key := list "podMonitor" "serviceMonitor" -}}
{{- if (get $root.Values $key).enabled -}}
{{- range $pool := $root.Values.pools | default (list dict) -}}
{{- $address := (include "dranet.effective" (dict "root" $root "pool" $pool) | fromJson).bind_address -}}
{{- if regexMatch "^(127\\.|localhost:|\\[::1\\]:)" (toString $address) -}}
{{- include "dranet.wrong" (dict "root" $root "message" (printf "%s.enabled: Prometheus cannot reach %s, where only the node itself can (settings.bind_address)" $key $address)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .Values.podMonitor.enabled .Values.serviceMonitor.enabled -}}
{{- include "dranet.wrong" (dict "root" . "message" "serviceMonitor.enabled: podMonitor.enabled is set too, and Prometheus would scrape each driver twice; enable one of them") -}}
{{- end -}}
{{- end -}}

{{- define "dranet.checkPools" -}}
{{- $root := . -}}
{{- $seen := list -}}
{{- range $pool := .Values.pools -}}
{{- if hasKey (include "dranet.snake" $pool.settings | fromJson) "driver_name" -}}
{{- include "dranet.wrong" (dict "root" $root "message" (printf "pools[%s].settings.driver_name: the name is one for all pools; set settings.driver_name, or install a second release" $pool.name)) -}}
{{- end -}}
{{- range $other := $seen -}}
{{- if eq $other.name $pool.name -}}
{{- include "dranet.wrong" (dict "root" $root "message" (printf "pools: two have the name %s" $pool.name)) -}}
{{- else if not (or $pool.affinity $other.affinity) -}}
{{- $apart := false -}}
{{- range $label, $value := $pool.nodeSelector }}{{ if and (hasKey ($other.nodeSelector | default dict) $label) (ne $value (get $other.nodeSelector $label)) }}{{ $apart = true }}{{ end }}{{ end -}}
{{- if not $apart -}}
{{- include "dranet.wrong" (dict "root" $root "message" (printf "pools: %s and %s can select the same node: give their nodeSelectors the same label with different values, or one of them an affinity that keeps it away" $other.name $pool.name)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $seen = append $seen $pool -}}
{{- end -}}
{{- end -}}

{{- define "dranet.checkUpdate" -}}
{{- $root := . -}}
{{- with .Values.updateStrategy -}}
{{- if eq .type "RollingUpdate" -}}
{{- $surge := toString .rollingUpdate.maxSurge | trimSuffix "%" | int -}}
{{- $unavailable := toString .rollingUpdate.maxUnavailable | trimSuffix "%" | int -}}
{{- if and $surge $unavailable -}}
{{- include "dranet.wrong" (dict "root" $root "message" "updateStrategy.rollingUpdate: one of maxSurge and maxUnavailable must be 0; maxSurge is 1 by default") -}}
{{- else if not (or $surge $unavailable) -}}
{{- include "dranet.wrong" (dict "root" $root "message" "updateStrategy.rollingUpdate: one of maxSurge and maxUnavailable must be more than 0") -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $given := .Values.terminationGracePeriodSeconds | default 0 | int -}}
{{- range $pool := .Values.pools | default (list dict) -}}
{{- $drain := (include "dranet.effective" (dict "root" $root "pool" $pool) | fromJson).drain_seconds | ceil | int -}}
{{- if and $given (lt $given (add $drain 20 | int)) -}}
{{- include "dranet.wrong" (dict "root" $root "message" (printf "terminationGracePeriodSeconds: %d is less than drain_seconds + 20 (%d)%s: the driver would be killed during its shutdown" $given (add $drain 20) (ternary (printf " in pool %s" $pool.name) "" (hasKey $pool "name")))) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "dranet.checkSecurity" -}}
{{- $root := . -}}
{{- range $kind := list "seccomp" "appArmor" -}}
{{- with get $root.Values.securityContext $kind -}}
{{- if and (eq .type "Localhost") (not .localhostProfile) -}}
{{- include "dranet.wrong" (dict "root" $root "message" (printf "securityContext.%s.localhostProfile: type Localhost needs the name of the profile" $kind)) -}}
{{- else if and (ne .type "Localhost") .localhostProfile -}}
{{- include "dranet.wrong" (dict "root" $root "message" (printf "securityContext.%s.localhostProfile is set, and type is %s: set type to Localhost" $kind .type)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "dranet.checkRights" -}}
{{- $root := . -}}
{{- range $name := .Values.securityContext.capabilities -}}
{{- if hasPrefix "CAP_" $name -}}
{{- include "dranet.wrong" (dict "root" $root "message" (printf "securityContext.capabilities: write %s in place of %s" (trimPrefix "CAP_" $name) $name)) -}}
{{- else if eq $name "ALL" -}}
{{- include "dranet.wrong" (dict "root" $root "message" "securityContext.capabilities: ALL gives every capability; list those that the driver needs") -}}
{{- end -}}
{{- end -}}
{{- if not (or .Values.serviceAccount.create .Values.serviceAccount.name) -}}
{{- include "dranet.wrong" (dict "root" $root "message" "serviceAccount.name: create is false, so name an existing account (with the one called default every pod of the namespace would have the driver's rights)") -}}
{{- end -}}
{{- range $name, $policy := .Values.admissionPolicies -}}
{{- if and (has "Deny" $policy.validationActions) (has "Warn" $policy.validationActions) -}}
{{- include "dranet.wrong" (dict "root" $root "message" (printf "admissionPolicies.%s.validationActions: Deny and Warn exclude each other (each can be combined with Audit)" $name)) -}}
{{- end -}}
{{- end -}}
{{- $own := list "config" "pod" "tls" "client-ca" "seccomp" "lldpd" "webhook" "webhook-ca" "webhook-client" -}}
{{- range (.Files.Get "files/driver.yaml" | fromYaml).mounts }}{{ $own = append $own .name }}{{ end -}}
{{- $volumes := $own -}}
{{- range .Values.extraVolumes -}}
{{- if has .name $own -}}
{{- include "dranet.wrong" (dict "root" $root "message" (printf "extraVolumes: %s is the name of a volume of the chart; choose another name" .name)) -}}
{{- end -}}
{{- $volumes = append $volumes .name -}}
{{- end -}}
{{- range .Values.extraVolumeMounts -}}
{{- if not (has .name $volumes) -}}
{{- include "dranet.wrong" (dict "root" $root "message" (printf "extraVolumeMounts: there is no volume %s; write it in extraVolumes" .name)) -}}
{{- end -}}
{{- end -}}
{{- range .Values.extraEnv -}}
{{- if hasPrefix "DRANET_" .name -}}
{{- include "dranet.wrong" (dict "root" $root "message" (printf "extraEnv: %s would override the settings; write settings.%s" .name (trimPrefix "DRANET_" .name | lower))) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What a running release must not change: the records of claims are at these places and under this name. Under other
names of objects Helm would delete the running drivers before the new ones are ready. */}}
{{- define "dranet.checkInstalled" -}}
{{- $root := . -}}
{{- $remedy := "end the pods with claims, `helm uninstall`, then install (docs/guides/install.md#what-does-not-change)" -}}
{{- $defaults := (.Files.Get "files/driver.yaml" | fromYaml).defaults -}}
{{- range $map := (lookup "v1" "ConfigMap" .Release.Namespace "").items -}}
{{- $labels := $map.metadata.labels | default dict -}}
{{- $wanted := include "dranet.selectorLabels" $root | fromYaml -}}
{{- $theirs := pick $labels "app.kubernetes.io/instance" "app.kubernetes.io/component" -}}
{{- if and (eq (toJson $theirs) (toJson (omit $wanted "app.kubernetes.io/name"))) (hasKey ($map.data | default dict) "settings.yaml") -}}
{{- $before := index $map.data "settings.yaml" | fromYaml -}}
{{- $from := get $labels "dra.net/pool" | default "default" -}}
{{- $fullname := include "dranet.fullname" $root -}}
{{- $wasCalled := get $labels "app.kubernetes.io/name" -}}
{{- $isCalled := get $wanted "app.kubernetes.io/name" -}}
{{- if not (and (eq $wasCalled $isCalled) (has $map.metadata.name (list $fullname (printf "%s-%s" $fullname $from)))) -}}
{{- include "dranet.wrong" (dict "root" $root "message" (printf "nameOverride, fullnameOverride: this release has the ConfigMap %s (app.kubernetes.io/name %s), and its objects would be named %s (%s): Helm would delete the running drivers before the new ones are ready. Leave both as they were. To change them, %s" $map.metadata.name $wasCalled $fullname $isCalled $remedy)) -}}
{{- end -}}
{{- range $name := list "driver_name" "state_dir" "kubelet_root" -}}
{{- $old := get $before $name | default (get $defaults $name) | clean -}}
{{- $new := list -}}
{{- range $pool := $root.Values.pools | default (list dict) -}}
{{- $to := $pool.name | default "default" -}}
{{- if or (eq $name "driver_name") (eq $from $to) (eq $from "default") (eq $to "default") -}}
{{- $new = append $new (get (include "dranet.effective" (dict "root" $root "pool" $pool) | fromJson) $name | clean) -}}
{{- end -}}
{{- end -}}
{{- if and $new (not (has $old $new)) -}}
{{- include "dranet.wrong" (dict "root" $root "message" (printf "settings.%s: this release runs with %s (ConfigMap %s), and a driver with %s does not know the claims in use: their NICs would not be restored. To change it, %s" $name $old $map.metadata.name (join ", " ($new | uniq)) $remedy)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "dranet.checkClasses" -}}
{{- $root := . -}}
{{- $names := list -}}
{{- range (include "dranet.classes" . | fromJson).classes -}}
{{- if has .name $names -}}
{{- include "dranet.wrong" (dict "root" $root "message" (printf "deviceClasses: two have the name %s" .name)) -}}
{{- end -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- end -}}

{{/* Two releases must not serve one driver name: on each node they would take each other for an update that never ends.
DeviceClasses are named after the driver, so the other one has those that this one is about to make. */}}
{{- define "dranet.checkOthers" -}}
{{- $root := . -}}
{{- $driver := include "dranet.driverName" . -}}
{{- $theirs := list -}}
{{- range (include "dranet.classes" . | fromJson).classes -}}
{{- $found := lookup "resource.k8s.io/v1" "DeviceClass" "" .name | default dict -}}
{{- $owner := dig "metadata" "annotations" dict $found -}}
{{- $release := get $owner "meta.helm.sh/release-name" -}}
{{- $namespace := get $owner "meta.helm.sh/release-namespace" -}}
{{- $isOurs := and (eq $release $root.Release.Name) (eq $namespace $root.Release.Namespace) -}}
{{- if and $release (not $isOurs) (contains (printf "device.driver == %s" (quote $driver)) (dig "spec" "selectors" list $found | toYaml)) -}}
{{- $theirs = append $theirs (printf "%s in namespace %s" $release $namespace) -}}
{{- end -}}
{{- end -}}
{{- with $theirs | uniq -}}
{{- include "dranet.wrong" (dict "root" $root "message" (printf "settings.driver_name: release %s serves %s already and owns its DeviceClasses. Two releases would publish the same devices, and each would take the other for an update that never ends. Upgrade that release, or give this one another name (docs/guides/install.md#two-drivers-other-names)" (join ", release " .) $driver)) -}}
{{- end -}}
{{- end -}}

{{- define "dranet.checkMetrics" -}}
{{- $root := . -}}
{{- with .Values.metrics -}}
{{- if and (ne .authentication "none") (not .tls.secretName) -}}
{{- include "dranet.wrong" (dict "root" $root "message" (printf "metrics.authentication: %s needs metrics.tls.secretName: clients cannot be identified without TLS" .authentication)) -}}
{{- end -}}
{{- if and (eq .authentication "client-certificate") (not .tls.clientCASecretName) -}}
{{- include "dranet.wrong" (dict "root" $root "message" "metrics.authentication: client-certificate needs metrics.tls.clientCASecretName") -}}
{{- else if and .tls.clientCASecretName (ne .authentication "client-certificate") -}}
{{- include "dranet.wrong" (dict "root" $root "message" "metrics.tls.clientCASecretName is used only with metrics.authentication client-certificate") -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "dranet.checkWebhook" -}}
{{- $root := . -}}
{{- $uses := or .Values.webhook.caSecretName .Values.webhook.clientSecretName -}}
{{- range $pool := .Values.pools | default (list dict) -}}
{{- $settings := include "dranet.effective" (dict "root" $root "pool" $pool) | fromJson -}}
{{- $url := get $settings "webhook_url" | default "" -}}
{{- $asks := or (eq (get $settings "cloud_provider" | default "" | toString) "webhook") (eq (get $settings "profile_provider" | default "" | toString) "webhook") -}}
{{- $where := hasKey $pool "name" | ternary (printf " in pool %s" $pool.name) "" -}}
{{- if and $asks (not $url) -}}
{{- include "dranet.wrong" (dict "root" $root "message" (printf "settings.webhook_url: must be set%s, because cloud_provider or profile_provider is webhook" $where)) -}}
{{- else if and $url (not $asks) -}}
{{- include "dranet.wrong" (dict "root" $root "message" (printf "settings.webhook_url: nothing is asked of it%s; set cloud_provider or profile_provider to webhook" $where)) -}}
{{- else if and $uses (not (hasPrefix "https://" $url)) -}}
{{- include "dranet.wrong" (dict "root" $root "message" (printf "webhook: certificates are for settings.webhook_url https://...%s, not %s" $where (quote $url))) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What several templates share. Values are checked in _checks.tpl. */}}

{{/* Name of the objects: at most 40 characters, so that suffixes fit; a hash distinguishes names that are cut. */}}
{{- define "dranet.fullname" -}}
{{- $name := .Values.nameOverride | default .Chart.Name -}}
{{- $full := .Values.fullnameOverride | default (contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name)) -}}
{{- if gt (len $full) 40 -}}
{{- printf "%s-%s" ($full | trunc 32 | trimSuffix "-") ($full | sha1sum | trunc 7) -}}
{{- else -}}
{{- $full -}}
{{- end -}}
{{- end -}}

{{/* Name of a pool's DaemonSet and ConfigMap, from (dict "root" $ "pool" pool). */}}
{{- define "dranet.poolName" -}}
{{ include "dranet.fullname" .root }}{{ with .pool.name }}-{{ . }}{{ end }}
{{- end -}}

{{- define "dranet.serviceAccountName" -}}
{{- .Values.serviceAccount.name | default (.Values.serviceAccount.create | ternary (include "dranet.fullname" .) "default") -}}
{{- end -}}

{{/* Labels that select pods; they never change in the life of a release. */}}
{{- define "dranet.selectorLabels" -}}
app.kubernetes.io/name: {{ .Values.nameOverride | default .Chart.Name | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: driver
{{- end -}}

{{/* Merge maps of labels or annotations: later ones in the list override earlier ones. */}}
{{- define "dranet.merged" -}}
{{- $all := dict -}}
{{- range $map := . }}{{ range $key, $value := $map }}{{ $_ := set $all $key $value }}{{ end }}{{ end -}}
{{- toYaml $all -}}
{{- end -}}

{{- define "dranet.labels" -}}
{{- include "dranet.merged" (list .Values.commonLabels (include "dranet.ownLabels" . | fromYaml)) -}}
{{- end -}}

{{- define "dranet.ownLabels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{ include "dranet.selectorLabels" . }}
app.kubernetes.io/part-of: dranet
app.kubernetes.io/version: {{ include "dranet.version" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{/* Labels of objects that are not the driver's, from (dict "root" $ "component" "test"). What selects its pods does not select
theirs. */}}
{{- define "dranet.componentLabels" -}}
{{- include "dranet.merged" (list (include "dranet.labels" .root | fromYaml) (dict "app.kubernetes.io/component" .component)) -}}
{{- end -}}

{{/* Labels of the objects of each pool, from (dict "root" $ "pool" pool). */}}
{{- define "dranet.poolLabels" -}}
{{- include "dranet.merged" (list (include "dranet.labels" .root | fromYaml) (dict "dra.net/pool" (.pool.name | default "default"))) -}}
{{- end -}}

{{/* Labels of the pods of a pool, from (dict "root" $ "pool" pool). */}}
{{- define "dranet.ownPodLabels" -}}
{{ include "dranet.selectorLabels" .root }}
app.kubernetes.io/part-of: dranet
app.kubernetes.io/version: {{ include "dranet.version" .root }}
dra.net/pool: {{ .pool.name | default "default" | quote }}
{{- end -}}

{{/* Annotations of the pods of a pool. */}}
{{- define "dranet.ownPodAnnotations" -}}
kubectl.kubernetes.io/default-container: dranet
checksum/settings: {{ include "dranet.settings" . | sha256sum }}
{{- end -}}

{{/* The image's tag as a label, which may be shorter. */}}
{{- define "dranet.version" -}}
{{- .Values.image.tag | default .Chart.AppVersion | trunc 63 | trimAll "-_." | quote -}}
{{- end -}}

{{- define "dranet.image" -}}
{{- with .Values.global.imageRegistry | default .Values.image.registry }}{{ . }}/{{ end -}}
{{- with .Values.image -}}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ end -}}
{{- end -}}
{{- end -}}

{{- define "dranet.imagePullSecrets" -}}
{{- $secrets := list -}}
{{- range concat (.Values.imagePullSecrets | default list) (.Values.global.imagePullSecrets | default list) }}{{ $secrets = append $secrets (kindIs "map" . | ternary . (dict "name" .)) }}{{ end -}}
{{- with $secrets | uniq -}}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end -}}
{{- end -}}

{{/* Settings as JSON by their names in snake_case, as the driver reads them. */}}
{{- define "dranet.snake" -}}
{{- $all := dict -}}
{{- range $name, $value := . }}{{ $_ := set $all (snakecase $name) $value }}{{ end -}}
{{- toRawJson $all -}}
{{- end -}}

{{/* The sources of addresses of a pool as JSON, from (dict "root" $ "pool" pool). */}}
{{- define "dranet.ipam" -}}
{{- $all := dict -}}
{{- range $name, $source := .root.Values.ipam }}{{ $_ := set $all $name $source }}{{ end -}}
{{- range $name, $source := .pool.ipam }}{{ $_ := set $all $name $source }}{{ end -}}
{{- toRawJson $all -}}
{{- end -}}

{{/* Mounts for the sources of addresses, under "mounts", from (dict "sources" sources "folders" plugin folders "facts"
mounts by name). A plugin's own folders are found in its configuration. */}}
{{- define "dranet.ipamMounts" -}}
{{- $facts := .facts -}}
{{- $mounts := list -}}
{{- range .sources -}}
{{- $cni := .cni | default dict -}}
{{- if $cni }}{{ range $.folders }}{{ $mounts = append $mounts (merge (dict "path" .) (get $facts "cni-bin")) }}{{ end }}{{ end -}}
{{- $plugin := get $cni "ipam" | default dict -}}
{{- if eq (get $plugin "type" | default "") "host-local" -}}
{{- $mounts = append $mounts (merge (dict "path" ($plugin.dataDir | default (get $facts "cni-networks").path)) (get $facts "cni-networks")) -}}
{{- else if eq (get $plugin "type" | default "") "whereabouts" -}}
{{- $standard := (get $facts "cni-whereabouts").path -}}
{{- $files := list ($plugin.configuration_path | default $standard) ((get $plugin "kubernetes" | default dict).kubeconfig | default $standard) -}}
{{- range $files -}}
{{- $folder := eq . $standard | ternary . (dir .) -}}
{{- $mounts = append $mounts (merge (dict "path" $folder) (get $facts "cni-whereabouts")) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- dict "mounts" $mounts | toRawJson -}}
{{- end -}}

{{/* The settings of a pool as JSON, from (dict "root" $ "pool" pool): common ones, the pool's over them, the chart's. */}}
{{- define "dranet.chosen" -}}
{{- $all := dict -}}
{{- range $name, $value := include "dranet.snake" .root.Values.settings | fromJson }}{{ $_ := set $all $name $value }}{{ end -}}
{{- range $name, $value := include "dranet.snake" .pool.settings | fromJson }}{{ $_ := set $all $name $value }}{{ end -}}
{{- if concat .root.Values.attributes (.pool.attributes | default list) }}{{ $_ := set $all "attributes_file" "/etc/dranet/attributes.yaml" }}{{ end -}}
{{- if concat (.pool.virtualFunctions | default list) .root.Values.virtualFunctions }}{{ $_ := set $all "virtual_functions_file" "/etc/dranet/virtual-functions.yaml" }}{{ end -}}
{{- if include "dranet.ipam" . | fromJson }}{{ $_ := set $all "ipam_file" "/etc/dranet/ipam.json" }}{{ end -}}
{{- with .root.Values.metrics -}}
{{- if .tls.secretName }}{{ $_ := set $all "metrics_tls_cert" "/etc/dranet-tls/tls.crt" }}{{ $_ := set $all "metrics_tls_key" "/etc/dranet-tls/tls.key" }}{{ end -}}
{{- if .tls.clientCASecretName }}{{ $_ := set $all "metrics_client_ca" "/etc/dranet-client-ca/ca.crt" }}{{ end -}}
{{- if ne .authentication "none" }}{{ $_ := set $all "metrics_authentication" .authentication }}{{ end -}}
{{- end -}}
{{- with .root.Values.webhook -}}
{{- if .caSecretName }}{{ $_ := set $all "webhook_ca" "/etc/dranet-webhook-ca/ca.crt" }}{{ end -}}
{{- if .clientSecretName }}{{ $_ := set $all "webhook_client_cert" "/etc/dranet-webhook/tls.crt" }}{{ $_ := set $all "webhook_client_key" "/etc/dranet-webhook/tls.key" }}{{ end -}}
{{- end -}}
{{- range $name, $value := (.root.Files.Get "files/driver.yaml" | fromYaml).chartSettings }}{{ $_ := set $all $name $value }}{{ end -}}
{{- toRawJson $all -}}
{{- end -}}

{{/* The same as the driver's file. Each value is JSON, which is also YAML and keeps numbers and text as they are. */}}
{{- define "dranet.settings" -}}
{{- range $name, $value := include "dranet.chosen" . | fromJson }}
{{ $name }}: {{ toRawJson $value }}
{{- end -}}
{{- end -}}

{{/* The same as JSON, with the defaults of those that the chart itself uses. */}}
{{- define "dranet.effective" -}}
{{- $all := (.root.Files.Get "files/driver.yaml" | fromYaml).defaults -}}
{{- range $name, $value := include "dranet.chosen" . | fromJson }}{{ $_ := set $all $name $value }}{{ end -}}
{{- $_ := set $all "nri_dir" (dir $all.nri_socket) -}}
{{- toRawJson $all -}}
{{- end -}}

{{/* A path of the node, from (dict "path" path "settings" effective): {kubelet_root} and so on put in. */}}
{{- define "dranet.path" -}}
{{- $path := .path -}}
{{- range $name := list "kubelet_root" "state_dir" "cdi_dir" "nri_dir" "driver_name" -}}
{{- $path = $path | replace (printf "{%s}" $name) (get $.settings $name) -}}
{{- end -}}
{{- clean $path -}}
{{- end -}}

{{- define "dranet.driverName" -}}
{{- (include "dranet.snake" .Values.settings | fromJson).driver_name | default (.Files.Get "files/driver.yaml" | fromYaml).defaults.driver_name -}}
{{- end -}}

{{/* A security context with the SELinux type of the values. */}}
{{- define "dranet.seLinux" -}}
{{- $context := omit .context "seLinuxOptions" -}}
{{- with .type }}{{ $_ := set $context "seLinuxOptions" (dict "type" .) }}{{ end -}}
{{- toYaml $context -}}
{{- end -}}

{{/* HTTP probe of /healthz, from effective settings: where the driver listens. */}}
{{- define "dranet.healthz" -}}
{{- $get := dict "path" "/healthz" "port" (include "dranet.port" . | int) -}}
{{- $host := regexReplaceAll ":[0-9]+$" .bind_address "" | trimPrefix "[" | trimSuffix "]" -}}
{{- if not (has $host (list "" "0.0.0.0" "::" "*")) }}{{ $_ := set $get "host" $host }}{{ end -}}
{{- if hasKey . "metrics_tls_cert" }}{{ $_ := set $get "scheme" "HTTPS" }}{{ end -}}
{{- toYaml $get -}}
{{- end -}}

{{- define "dranet.port" -}}
{{- regexFind "[0-9]+$" .bind_address -}}
{{- end -}}

{{/* CEL: a device of this driver, and further conditions. */}}
{{- define "dranet.ofDriver" -}}
device.driver == {{ .driver | quote }}
{{- with .expression }} && {{ if contains "||" . }}({{ . }}){{ else }}{{ . }}{{ end }}{{ end -}}
{{- end -}}

{{/* Every DeviceClass as JSON, under "classes": those of the chart with the names that they have here, and those of the
values. */}}
{{- define "dranet.classes" -}}
{{- $facts := .Files.Get "files/device-classes.yaml" | fromYaml -}}
{{- $driver := include "dranet.driverName" . -}}
{{- $prefix := .Values.deviceClasses.prefix | default (eq $driver $facts.driver | ternary $facts.prefix $driver) -}}
{{- $classes := list -}}
{{- range .Values.deviceClasses.create | ternary $facts.classes list -}}
{{- $value := get $.Values.deviceClasses .key -}}
{{- if $value.create -}}
{{- $classes = append $classes (dict "name" ($value.name | default (printf "%s%s" $prefix .suffix)) "expression" .expression "extendedResourceName" $value.extendedResourceName "parameters" $value.parameters) -}}
{{- end -}}
{{- end -}}
{{- dict "classes" (concat $classes (.Values.deviceClasses.create | ternary .Values.deviceClasses.extra list)) | toRawJson -}}
{{- end -}}

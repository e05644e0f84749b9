package config

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// Bounds of what is read; larger files are refused.
const (
	fileMax   = 1 << 20 // bytes of a configuration file
	secretMax = 64 << 10
)

// Load reads a file; an empty path is a node on defaults. Secrets named by the file are read here and now. The error is
// of type Faults unless the file itself cannot be read.
func Load(path string) (*Config, error) {
	if path == "" {
		return Parse(nil)
	}
	data, err := readBounded(path, fileMax)
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	return Parse(data)
}

// Parse reads a configuration. An error is of type Faults and holds everything that is wrong, not only the first.
func Parse(data []byte) (*Config, error) {
	root, err := parseYAML(data)
	if err != nil {
		return nil, Faults{{Problem: err.Error()}}
	}
	c := Default()
	c.set = map[string]int{}
	d := decoder{set: c.set}
	// A file that names stores names all of them, but "default" keeps its default unless it is named.
	fallback := c.Stores["default"]
	d.into("", root, c)
	if _, ok := c.Stores["default"]; !ok {
		if c.Stores == nil {
			c.Stores = map[string]Store{}
		}
		c.Stores["default"] = fallback
	}
	c.complete()
	faults := append(d.faults, c.resolveSecrets()...)
	faults = append(faults, c.validate()...)
	faults = c.withLines(withoutRepeats(faults))
	if len(faults) > 0 {
		return nil, faults
	}
	c.Warnings = c.warnings()
	return c, nil
}

// Validate checks a configuration that was built in code or changed after Parse. All faults are in the error, which is of
// type Faults.
func (c *Config) Validate() error { return c.withLines(c.validate()).err() }

// withoutRepeats keeps the first fault of each field: what could not be read would be found out of bounds again.
func withoutRepeats(faults Faults) Faults {
	var kept Faults
	seen := map[string]bool{}
	for _, f := range faults {
		if !seen[f.Path] {
			seen[f.Path] = true
			kept = append(kept, f)
		}
	}
	return kept
}

// withLines says where the field stands, or else the nearest thing around it that the file has, and sorts by that.
func (c *Config) withLines(faults Faults) Faults {
	for i := range faults {
		f := &faults[i]
		for path := f.Path; f.Line == 0 && path != ""; {
			f.Line = c.set[path]
			path = path[:max(0, strings.LastIndexAny(path, ".["))]
		}
	}
	slices.SortStableFunc(faults, func(a, b Fault) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Path, b.Path))
	})
	return faults
}

// Hash names the effective configuration, defaults included, without secrets and without what differs from node to node
// (node, data_dir): 12 hex digits, equal on nodes that decide alike.
func (c *Config) Hash() string {
	same := *c
	same.Node, same.DataDir, same.Warnings = Node{}, "", nil
	text, err := json.Marshal(&same)
	if err != nil {
		panic("BUG: config: " + err.Error())
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:6])
}

// secretSource is one place of the configuration that names where a secret is kept.
type secretSource struct {
	path             string // of the section
	envField         string // names of the two fields in the file
	fileField        string
	env, file        string
	unsetIsNoneAtAll bool // an unset variable is no fault
}

func (c *Config) resolveSecrets() Faults {
	var faults Faults
	fill := func(s secretSource, use func(string) error) {
		value, field, err := s.read()
		if err == nil && value != "" {
			err = use(value)
		}
		if err != nil {
			faults.add(join(s.path, field), 0, "%v", err)
		}
	}
	keep := func(to *Secret) func(string) error {
		return func(value string) error { *to = NewSecret(value); return nil }
	}
	if c.Admin.TokenFile != "" && !c.isSet("admin.token_env") {
		c.Admin.TokenEnv = "" // the default gives way
	}
	fill(secretSource{"admin", "token_env", "token_file", c.Admin.TokenEnv, c.Admin.TokenFile, c.Admin.TokenEnv == adminTokenEnv}, keep(&c.Admin.Token))
	fill(secretSource{"webhook", "secret_env", "secret_file", c.Webhook.SecretEnv, c.Webhook.SecretFile, false}, keep(&c.Webhook.Secret))
	fill(secretSource{"ledger", "password_env", "password_file", c.Ledger.PasswordEnv, c.Ledger.PasswordFile, false}, func(password string) (err error) {
		c.Ledger.URL, err = c.Ledger.URL.withPassword(password)
		return err
	})
	for _, name := range sorted(c.Stores) {
		s := c.Stores[name]
		fill(secretSource{"stores." + name, "password_env", "password_file", s.PasswordEnv, s.PasswordFile, false}, func(password string) (err error) {
			s.URL, err = s.URL.withPassword(password)
			return err
		})
		c.Stores[name] = s
	}
	for _, name := range sorted(c.Upstreams) {
		u := c.Upstreams[name]
		path, envField, fileField := "upstreams."+name+".auth", "env", "file"
		if u.Auth.BearerEnv != "" || u.Auth.BearerFile != "" {
			envField, fileField = "bearer_env", "bearer_file"
			for _, other := range []string{"env", "file", "header", "prefix"} {
				if c.isSet(path + "." + other) {
					faults.add(path+"."+other, 0, "bearer_env and bearer_file already say it; use one form")
				}
			}
		}
		fill(secretSource{path, envField, fileField, u.Auth.Env, u.Auth.File, false}, keep(&u.Auth.Secret))
		c.Upstreams[name] = u
	}
	return faults
}

// read returns the secret, "" when none is named, and the field that an error belongs to.
func (s secretSource) read() (value, field string, err error) {
	switch {
	case s.env != "" && s.file != "":
		return "", s.fileField, fmt.Errorf("%s names a source already; use one of the two", s.envField)
	case s.file != "":
		data, err := readBounded(s.file, secretMax)
		if err != nil {
			return "", s.fileField, err
		}
		value, field = strings.TrimRight(string(data), "\r\n"), s.fileField
		if value == "" {
			return "", field, errors.New("the file is empty")
		}
	case s.env != "":
		value, field = os.Getenv(s.env), s.envField
		if value == "" && !s.unsetIsNoneAtAll {
			return "", field, fmt.Errorf("the environment variable %s is not set", s.env)
		}
	}
	for _, r := range value {
		if r < ' ' || r == 0x7f {
			return "", field, errors.New("the secret has control characters; it must be one line")
		}
	}
	return value, field, nil
}

func readBounded(path string, max int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, max+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > max {
		return nil, fmt.Errorf("%s is larger than %s", path, Size(max))
	}
	return data, nil
}

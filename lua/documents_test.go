package lua

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tollgate/lua/redistest"
	"tollgate/quota"
)

// open is a store as a node has it, on a Redis that other tests share.
func open(t testing.TB, url string, change ...func(*Options)) *Store {
	t.Helper()
	o := Options{Name: "default", URL: url}
	for _, f := range change {
		f(&o)
	}
	s, err := Open(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

func TestDocuments(t *testing.T) {
	heard := make(chan []string, 16)
	s := open(t, redistest.Shared(t).URL(), func(o *Options) { o.OnInvalidate = func(keys []string) { heard <- keys } })
	ctx := t.Context()
	_, ok, err := s.ReadSecret(ctx, "abc")
	require.NoError(t, err)
	require.False(t, ok)
	out, err := s.PublishSecret(ctx, "abc", 2, []byte(`{"tenant":"t_1","status":"active"}`))
	require.NoError(t, err)
	require.Equal(t, Done, out)
	require.Equal(t, []string{SecretKey("abc")}, <-heard, "creation takes back the memory of its absence")
	doc, ok, err := s.ReadSecret(ctx, "abc")
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, SecretDoc{Tenant: "t_1", Status: Active}, doc)
	out, err = s.PublishSecret(ctx, "abc", 1, []byte(`{"tenant":"t_2"}`))
	require.NoError(t, err)
	require.Equal(t, Old, out)

	out, err = s.PublishConf(ctx, "t_docs", "tenant", 3, []byte(`{"id":"t_docs","day":5,"version":3}`), nil)
	require.NoError(t, err)
	require.Equal(t, Done, out)
	_, err = s.PublishConf(ctx, "t_docs", "key:k_1", 4, []byte(`{"id":"k_1","models":["m"],"version":4}`), nil)
	require.NoError(t, err)
	conf, err := s.ReadConf(ctx, "t_docs", "a_1", "k_1")
	require.NoError(t, err)
	require.Nil(t, conf.App)
	require.EqualValues(t, 5, *conf.Tenant.Day)
	require.Equal(t, []string{"m"}, conf.Key.Models)
}

// A document that another program mangled is an error, never a zero document.
func TestMangledDocuments(t *testing.T) {
	r := redistest.Start(t)
	s := open(t, r.URL())
	for i, value := range []string{"no version", "1", `1 {"tenant":`, `1 {"tenant":5}`} {
		hash := string(rune('a' + i))
		_, err := r.Do("HSET", SecretKey(hash), "doc", value)
		require.NoError(t, err)
		_, _, err = s.ReadSecret(t.Context(), hash)
		require.ErrorIs(t, err, ErrReply, value)
	}
	_, err := r.Do("SET", SecretKey("z"), "not a hash")
	require.NoError(t, err)
	_, _, err = s.ReadSecret(t.Context(), "z")
	require.ErrorIs(t, err, ErrRefused)
	_, err = r.Do("SET", AccountKey("t_m", quota.Account{Scope: quota.Org, ID: "t_m"}), "not a hash")
	require.NoError(t, err)
	_, err = s.ReadAccounts(t.Context(), "t_m", quota.Chain{{Scope: quota.Org, ID: "t_m"}})
	require.ErrorIs(t, err, ErrRefused)
}

// The names of keys are a contract with every other node and with operators.
func TestKeyNames(t *testing.T) {
	day := quota.Window{Name: "d20261130", Start: 1, End: 2}
	month := quota.Window{Name: "m202611", Start: 1, End: 3}
	for want, got := range map[string]string{
		"quota:{t_x}:org:t_x":           AccountKey("t_x", quota.Account{Scope: quota.Org, ID: "t_x"}),
		"quota:{t_x}:app:a_y":           AccountKey("t_x", quota.Account{Scope: quota.App, ID: "a_y"}),
		"quota:{t_x}:key:k_z:d20261130": AccountKey("t_x", quota.Account{Scope: quota.Key, ID: "k_z", Period: quota.Day, Window: day}),
		"quota:{t_x}:key:k_z:m202611":   AccountKey("t_x", quota.Account{Scope: quota.Key, ID: "k_z", Period: quota.Month, Window: month}),
		"quota:{t_x}:req:k_z:ab":        HoldKey("t_x", "k_z:ab"),
		"quota:{t_x}:deadlines":         DeadlinesKey("t_x"),
		"quota:{t_x}:conf":              ConfKey("t_x"),
		"rl:{t_x}:key:k_z:r":            BucketKey("t_x", BucketArg{Scope: quota.Key, ID: "k_z", Unit: quota.UnitRPM}),
		"rl:{t_x}:app:a_y:s":            BucketKey("t_x", BucketArg{Scope: quota.App, ID: "a_y", Unit: quota.UnitRPS}),
		"rl:{t_x}:org:t_x:t":            BucketKey("t_x", BucketArg{Scope: quota.Org, ID: "t_x", Unit: quota.UnitTPM}),
		"tgkey:{00ff}":                  SecretKey("00ff"),
		"tgledger":                      LedgerKey,
	} {
		require.Equal(t, want, got)
	}
	chain := quota.Chain{
		{Scope: quota.Org, ID: "t_x"},
		{Scope: quota.App, ID: "a_y"},
		{Scope: quota.Key, ID: "k_z"},
		{Scope: quota.Org, ID: "t_x", Period: quota.Month, Window: month},
		{Scope: quota.Key, ID: "k_z", Period: quota.Day, Window: day},
	}
	names, windows := chainText(chain)
	back, err := parseChain(names, windows)
	require.NoError(t, err)
	require.Equal(t, chain, back)
	for _, bad := range [][2]string{
		{"", ""},
		{"org:t", ""},
		{"org:t", "0-0 0-0"},
		{"org", "0-0"},
		{"org:a:b:c", "0-0"},
		{"who:t", "0-0"},
		{"org:t:d20260101", "1"},
		{"org:t:d20260101", "x-2"},
		{"a:1 a:1 a:1 a:1 a:1 a:1 a:1 a:1 a:1 a:1", "0-0 0-0 0-0 0-0 0-0 0-0 0-0 0-0 0-0 0-0"},
	} {
		_, err := parseChain(bad[0], bad[1])
		require.ErrorIs(t, err, ErrReply, "%q", bad)
	}
}

# `make release` fills in version and checksum. The packages that it depends on are installed by pip
# from their wheels: Arrow and pandas take an hour to build.
class Hpcdash < Formula
  include Language::Python::Virtualenv

  desc "@SUMMARY@"
  homepage "https://pypi.org/project/hpcdash/"
  url "https://pypi.org/packages/source/h/hpcdash/hpcdash-@VERSION@.tar.gz"
  sha256 "@SHA256@"
  license "MIT"

  depends_on "python@3.13"

  def install
    virtualenv_create(libexec, "python3.13")
    system libexec/"bin/python", "-m", "ensurepip"
    system libexec/"bin/python", "-m", "pip", "install", buildpath
    bin.install_symlink libexec/"bin/hpcdash"
    man1.install_symlink Dir[libexec/"share/man/man1/*.1"]
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/hpcdash --version")
  end
end
